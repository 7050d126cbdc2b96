// Command bom writes what a program was built from: a CycloneDX bill of materials and
// the licences of all modules that are linked into it. Both come from the program's
// own build information, so that they cannot differ from it. The same program gives
// the same bytes.
package main

import (
	"bytes"
	"debug/buildinfo"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"slices"
	"strings"

	cdx "github.com/CycloneDX/cyclonedx-go"
)

func main() {
	program := flag.String("program", "", "`FILE` to describe")
	version := flag.String("version", "", "version of the program")
	bom := flag.String("bom", "", "`FILE` for the bill of materials")
	licences := flag.String("licences", "", "`FILE` for the licences")
	flag.Parse()
	if err := run(*program, *version, *bom, *licences); err != nil {
		fmt.Fprintln(os.Stderr, "bom:", err)
		os.Exit(1)
	}
}

func run(program, version, bom, licences string) error {
	info, err := buildinfo.ReadFile(program)
	if err != nil {
		return err
	}
	modules := linked(info)
	dirs, err := sources(modules)
	if err != nil {
		return err
	}
	var out bytes.Buffer
	if err := encode(&out, info, modules, version); err != nil {
		return err
	}
	texts, err := collect(modules, dirs)
	if err != nil {
		return err
	}
	return errors.Join(os.WriteFile(bom, out.Bytes(), 0o644), os.WriteFile(licences, texts, 0o644))
}

// standard is the library that comes with Go, as a module like others.
const standard = "std"

// linked are the modules in the program, the standard library first.
func linked(info *debug.BuildInfo) []*debug.Module {
	list := []*debug.Module{{Path: standard, Version: strings.TrimPrefix(info.GoVersion, "go")}}
	for _, m := range info.Deps {
		if m.Replace != nil {
			m = m.Replace
		}
		list = append(list, m)
	}
	slices.SortFunc(list[1:], func(a, b *debug.Module) int { return strings.Compare(a.Path, b.Path) })
	return list
}

func encode(out *bytes.Buffer, info *debug.BuildInfo, modules []*debug.Module, version string) error {
	main := cdx.Component{
		BOMRef: "telegraf-agp", Type: cdx.ComponentTypeApplication, Name: "telegraf-agp", Version: version,
		PackageURL: "pkg:golang/" + info.Main.Path + "@" + version, Licenses: &cdx.Licenses{{License: &cdx.License{ID: "Apache-2.0"}}},
	}
	var components []cdx.Component
	var refs []string
	for _, m := range modules {
		purl := "pkg:golang/" + m.Path + "@" + strings.ReplaceAll(m.Version, "+", "%2B")
		c := cdx.Component{BOMRef: purl, Type: cdx.ComponentTypeLibrary, Name: m.Path, Version: m.Version, PackageURL: purl}
		if m.Sum != "" {
			c.Properties = &[]cdx.Property{{Name: "go:sum", Value: m.Sum}}
		}
		components, refs = append(components, c), append(refs, purl)
	}
	b := cdx.NewBOM()
	b.Metadata = &cdx.Metadata{Component: &main}
	b.Components = &components
	b.Dependencies = &[]cdx.Dependency{{Ref: main.BOMRef, Dependencies: &refs}}
	return cdx.NewBOMEncoder(out, cdx.BOMFileFormatJSON).SetPretty(true).Encode(b)
}

// sources asks Go where the modules' files are.
func sources(modules []*debug.Module) (map[string]string, error) {
	args := []string{"list", "-m", "-f", "{{.Path}}\t{{.Dir}}"}
	for _, m := range modules[1:] {
		args = append(args, m.Path)
	}
	cmd := exec.Command("go", args...)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w", err)
	}
	dirs := map[string]string{}
	for line := range strings.Lines(string(out)) {
		path, dir, _ := strings.Cut(strings.TrimSpace(line), "\t")
		dirs[path] = dir
	}
	root, err := exec.Command("go", "env", "GOROOT").Output()
	dirs[standard] = strings.TrimSpace(string(root))
	return dirs, err
}

var (
	legal = regexp.MustCompile(`(?i)^(licen[cs]e|copying|notice|patents)([.-].*)?$`)
	// What must not be linked, by the titles of those licences.
	copyleft = regexp.MustCompile(`(?m)^\s*GNU (AFFERO )?GENERAL PUBLIC LICENSE`)
)

// collect joins the licence files of the modules; one without is an error.
func collect(modules []*debug.Module, dirs map[string]string) ([]byte, error) {
	var out bytes.Buffer
	fmt.Fprintf(&out, "telegraf-agp is under the Apache License 2.0. These %d modules are linked into it, under the licences that follow.\n", len(modules))
	for _, m := range modules {
		entries, err := os.ReadDir(dirs[m.Path])
		if err != nil {
			return nil, fmt.Errorf("files of %s: %w", m.Path, err)
		}
		found := false
		for _, e := range entries {
			if e.IsDir() || !legal.MatchString(e.Name()) {
				continue
			}
			text, err := os.ReadFile(filepath.Join(dirs[m.Path], e.Name()))
			if err != nil {
				return nil, err
			}
			if copyleft.Match(text) {
				return nil, fmt.Errorf("%s %s is under a licence that cannot be linked: %s", m.Path, m.Version, e.Name())
			}
			found = true
			fmt.Fprintf(&out, "\n%s\n%s %s: %s\n\n%s\n", strings.Repeat("=", 80), m.Path, m.Version, e.Name(), bytes.TrimSpace(text))
		}
		if !found {
			return nil, fmt.Errorf("%s %s has no licence file", m.Path, m.Version)
		}
	}
	return out.Bytes(), nil
}
