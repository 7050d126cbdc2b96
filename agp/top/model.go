package top

import (
	"time"

	tea "charm.land/bubbletea/v2"

	"github.com/agp-net/telegraf-agp/agp/control"
)

// retryAfter is how long a viewer that lost its engine waits before it tries again.
const retryAfter = time.Second

// Messages of a Model.
type (
	viewMsg struct{ view *control.View }
	lostMsg struct{ err error }
	goneMsg struct{} // there is no connection any more
)

// Model is a Screen in a terminal.
type Model struct {
	Screen
	next          func() (*control.View, error)
	width, height int
}

// NewModel shows what next returns. next waits for the following view, and connects anew
// after an error.
func NewModel(next func() (*control.View, error)) *Model { return &Model{next: next} }

// Init implements tea.Model.
func (m *Model) Init() tea.Cmd { return m.wait }

func (m *Model) wait() tea.Msg {
	v, err := m.next()
	if err != nil {
		return lostMsg{err}
	}
	return viewMsg{v}
}

// Update implements tea.Model.
func (m *Model) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	switch msg := msg.(type) {
	case tea.WindowSizeMsg:
		m.width, m.height = msg.Width, msg.Height
	case viewMsg:
		m.Screen.Update(msg.view)
		return m, m.wait
	case lostMsg:
		m.Lost(msg.err)
		return m, tea.Tick(retryAfter, func(time.Time) tea.Msg { return goneMsg{} })
	case goneMsg:
		return m, m.wait
	case tea.KeyPressMsg:
		switch msg.String() {
		case "q", "esc", "ctrl+c":
			return m, tea.Quit
		case "tab":
			m.NextMetric()
		case "p":
			m.Pause()
		}
	}
	return m, nil
}

// View implements tea.Model.
func (m *Model) View() tea.View {
	v := tea.NewView(m.Render(m.width, m.height))
	v.AltScreen = true
	return v
}
