package e2e

import (
	"bytes"
	"context"
	"image/color"
	"image/png"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"

	"github.com/agp-net/telegraf-agp/tests/testcap"
	"github.com/agp-net/telegraf-agp/tests/traffic"
)

// browser is one tab of a headless Chromium.
type browser struct {
	t   *testing.T
	ctx context.Context

	mu       sync.Mutex
	requests []string
}

func startBrowser(t *testing.T) *browser {
	t.Helper()
	path := testcap.Program(t, "chromium")
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	// Root has no sandbox; the page is our own.
	ctx, cancel = chromedp.NewExecAllocator(ctx, append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(path), chromedp.NoSandbox, chromedp.Flag("disable-dev-shm-usage", true))...)
	t.Cleanup(cancel)
	ctx, cancel = chromedp.NewContext(ctx)
	t.Cleanup(cancel)
	b := &browser{t: t, ctx: ctx}
	require.NoError(t, chromedp.Listen(ctx, func(ev any) {
		if r, ok := ev.(*network.EventRequestWillBeSent); ok {
			b.mu.Lock()
			defer b.mu.Unlock()
			b.requests = append(b.requests, r.Request.URL)
		}
	}))
	_, err := chromedp.Call(ctx, network.Enable, network.EnableParams{})
	require.NoError(t, err)
	return b
}

// open shows a page and returns what it wrote to the console and what it asked for.
func (b *browser) open(path string) (console, requests []string) {
	b.t.Helper()
	b.mu.Lock()
	b.requests = nil
	b.mu.Unlock()
	ctx, cancel := context.WithCancel(b.ctx)
	defer cancel()
	messages := chromedp.Console(ctx)
	require.NoError(b.t, chromedp.Do(b.ctx, chromedp.Navigate("file://"+path)))
	const end = "end of what the page wrote"
	_, err := chromedp.Run(b.ctx, chromedp.Evaluate[chromedp.Void](`console.log("`+end+`")`))
	require.NoError(b.t, err)
	for m, err := range messages {
		require.NoError(b.t, err)
		if m.Text == end {
			break
		}
		console = append(console, m.String())
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, r := range b.requests {
		if !strings.HasPrefix(r, "data:") {
			requests = append(requests, r)
		}
	}
	return console, requests
}

func evaluate[T any](b *browser, expression string) T {
	b.t.Helper()
	v, err := chromedp.Run(b.ctx, chromedp.Evaluate[T](expression))
	require.NoError(b.t, err, expression)
	return v
}

// screenshot keeps the picture among the artifacts and returns how many pixels have each colour.
func (b *browser) screenshot(name string) map[color.Color]int {
	b.t.Helper()
	raw, err := chromedp.Run(b.ctx, chromedp.FullScreenshot(100))
	require.NoError(b.t, err)
	require.NoError(b.t, os.WriteFile(filepath.Join(b.t.ArtifactDir(), name), raw, 0o600))
	picture, err := png.Decode(bytes.NewReader(raw))
	require.NoError(b.t, err)
	colours := map[color.Color]int{}
	for y := range picture.Bounds().Dy() {
		for x := range picture.Bounds().Dx() {
			colours[picture.At(x, y)]++
		}
	}
	return colours
}

// reportParts are the parts of a page that a reader must see.
var reportParts = []string{
	"#totals", "#plot-class path", "#plot-app path", "#plot-protocol path", "#hist-size rect", "#hist-delay rect",
	"#alerts td", "#top td", "#traffic td", "#accounting", "#drops td",
}

// hidden are the parts that cannot be seen.
func (b *browser) hidden() (list []string) {
	b.t.Helper()
	for _, part := range reportParts {
		if !evaluate[bool](b, `[...document.querySelectorAll("`+part+`")].some(e => {
			const r = e.getBoundingClientRect(), s = getComputedStyle(e);
			return r.width > 0 && r.height > 0 && s.visibility == "visible" && s.opacity > 0;
		})`) {
			list = append(list, part)
		}
	}
	return list
}

func TestReportIsShownByABrowser(t *testing.T) {
	b := startBrowser(t)
	dir := t.TempDir()
	page := filepath.Join(dir, "out.html")
	out, err := exec.Command(agpBinary(t), "replay", "--models", "../../configs/models/app.onnx,../../configs/models/class.onnx",
		"--report", page, writeARP(t), writeCapture(t, traffic.Demo(1))).CombinedOutput()
	require.NoError(t, err, string(out))

	for _, size := range []struct {
		name          string
		width, height int64
	}{{"phone", 390, 844}, {"desktop", 1280, 900}} {
		for _, scheme := range []string{"light", "dark"} {
			_, err := chromedp.Call(b.ctx, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
				Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}},
			})
			require.NoError(t, err)
			require.NoError(t, chromedp.Do(b.ctx, chromedp.EmulateViewport(size.width, size.height)))
			console, requests := b.open(page)
			require.Empty(t, console)
			require.Equal(t, []string{"file://" + page}, requests)
			require.Empty(t, b.hidden())
			require.LessOrEqual(t, evaluate[int64](b, `document.documentElement.scrollWidth`), size.width, "nothing sticks out")
			require.GreaterOrEqual(t, evaluate[float64](b, `Math.min(...[...document.querySelectorAll("svg text")].map(e => e.getBoundingClientRect().height))`), 10.0, "labels can be read")
			require.Equal(t, "48,317", evaluate[string](b, `document.querySelector("[data-name=packets_seen]").innerText`))

			colours := b.screenshot(size.name + "-" + scheme + ".png")
			require.Greater(t, len(colours), 50, "the picture is not blank")
			back, most := color.Color(nil), 0
			for c, n := range colours {
				if n > most {
					back, most = c, n
				}
			}
			want := map[string]color.Color{"light": color.RGBA{255, 255, 255, 255}, "dark": color.RGBA{13, 17, 23, 255}}[scheme]
			require.Equal(t, color.RGBAModel.Convert(want), color.RGBAModel.Convert(back))
		}
	}
}

// What the test above relies on: a page that is not as it should be is noticed.
func TestBrowserNoticesABrokenPage(t *testing.T) {
	b := startBrowser(t)
	page := filepath.Join(t.TempDir(), "broken.html")
	require.NoError(t, os.WriteFile(page, []byte(`<!DOCTYPE html><link rel="icon" href="data:,"><body style="margin:0"><div id="totals" style="display:none">x</div>`+
		`<img src="other.png"><div style="width:2000px">x</div><script>nothing()</script>`), 0o600))
	console, requests := b.open(page)
	require.Contains(t, strings.Join(console, "\n"), "nothing is not defined")
	require.Contains(t, requests, "file://"+filepath.Join(filepath.Dir(page), "other.png"))
	require.Equal(t, reportParts, b.hidden())
	require.GreaterOrEqual(t, evaluate[int](b, `document.documentElement.scrollWidth`), 2000)
}
