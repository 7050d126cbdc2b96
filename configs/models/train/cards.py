"""Writes the figures of app.eval.json and class.eval.json into the model cards, between the marks of each card."""
import json
import os
import re
import sys


def fill(path, figures):
    with open(path) as f:
        text = f.read()
    new, n = re.subn(r"(<!-- figures -->\n).*?(<!-- end of figures -->)", lambda m: m[1] + figures + m[2], text, flags=re.S)
    if n != 1:
        raise SystemExit(f"{path}: no place for the figures")
    with open(path, "w") as f:
        f.write(new)


def share(x):
    return f"{100 * x:.1f} %"


def app(e):
    out = [f"Scheme: {e['scheme']}; {e['captures']} captures in {e['groups']} groups. One row per flow: its last head features.", "",
           "| figure | value |", "|---|---|", f"| flows | {e['flows']} |", f"| macro F1 | {e['macro_f1']:.3f} |", f"| accuracy | {e['accuracy']:.3f} |",
           f"| threshold | {e['threshold']:.2f} |", f"| flows answered | {share(e['answered'])} |", f"| answers right | {share(e['answers_right'])} |",
           f"| answers right, flows of all other protocols included | {share(e['all_answers_right'])} |"]
    w = e["without_largest_capture"]
    out += [f"| without {w['capture']}: macro F1, accuracy, answered, right | {w['macro_f1']:.3f}, {w['accuracy']:.3f}, {share(w['answered'])}, {share(w['answers_right'])} |"]
    for key, name in (("folds_by_network", "folds by network (captures with a common client address together)"), ("without_generated_conversations", "trained without generated conversations")):
        if key in e:
            v = e[key]
            out.append(f"| {name}: macro F1, accuracy, answered, right | {v['macro_f1']:.3f}, {v['accuracy']:.3f}, {share(v['answered'])}, {share(v['answers_right'])} |")
    out += ["", "| protocol | flows | recall | precision | F1 | taken for |", "|---|---|---|---|---|---|"]
    for n, p in sorted(e["per_protocol"].items()):
        out.append(f"| {n} | {p['flows']} | {p['recall']:.3f} | {p['precision']:.3f} | {p['f1']:.3f} | {', '.join(f'{k} {v}' for k, v in p['taken_for'].items())} |")
    out += ["", "Captures with wrong flows (without threshold; in brackets those that the threshold lets through):", ""]
    out += [f"- {c}: {v['wrong']} of {v['flows']} ({v['wrong_answered']})" for c, v in sorted(e["per_capture_wrong"].items())]
    r = e["rarer_protocols"]
    out += ["", f"Flows of all other protocols: {r['flows']}, {r['of_them_known_to_the_model']} of a protocol that the model names. Named right {r['named_right']}, named wrong {r['named_wrong']}"
            f" ({', '.join(f'{k} {v}' for k, v in r['wrong'].items())}).", "",
            "Captures without oracle, protocol stated by their origin: " + ", ".join(f"{n} {v['right']} right of {v['answered']} answered of {v['flows']}" for n, v in e["captures_without_oracle"].items()) + ".", "",
            f"Flows that the oracle does not know: {e['oracle_unknown']['flows']}, of which the model names {e['oracle_unknown']['named']}.", ""]
    return "\n".join(out)


def behaviour(e):
    out = [f"Scheme: {e['scheme']}.", "", "| figure | value |", "|---|---|", f"| harmless captures | {e['benign_captures']}, of which {e['benign_captures_scored']} have a flow of {e['min_packets']} packets ({e['benign_flows_scored']} scorings) |",
           f"| of them with an alert | {len(e['benign_alerts'])} |",
           f"| of them with an alert, calibration without the judged fold's harmless captures | {e['benign_alerts_with_threshold_from_other_captures']} |"]
    for c in e["caught"]:
        out.append(f"| {c}: caught by this model alone | {len(e['caught'][c])} of {len(e['caught'][c]) + len(e['missed'][c])} |")
    out += ["", f"| attack capture | class | highest score of its class | alert at threshold {e['threshold']:.2f} |", "|---|---|---|---|"]
    for n, v in sorted(e["attack_captures"].items(), key=lambda t: (t[1]["class"], t[0])):
        score = f"{v['highest'][v['class']]:.3f}" if "highest" in v else v["note"]
        alert = v["alert"] + (f", from {v['packets']} packets" if v["alert"] == v["class"] else "") if v["alert"] else "missed"
        out.append(f"| {n} | {v['class']} | {score} | {alert} |")
    out += ["", "Harmless captures that come closest:", "", "| capture | c2 | covert | tunnel |", "|---|---|---|---|"]
    out += [f"| {n} | {v['c2']:.3f} | {v['covert']:.3f} | {v['tunnel']:.3f} |" for n, v in sorted(e["closest_benign"].items(), key=lambda t: -max(t[1].values()))]
    return "\n".join(out) + "\n"


def main():
    folder = sys.argv[1]
    for name, text in (("app", app), ("class", behaviour)):
        with open(os.path.join(folder, name + ".eval.json")) as f:
            fill(os.path.join(folder, name + ".md"), text(json.load(f)))


if __name__ == "__main__":
    main()
