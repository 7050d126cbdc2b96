// Package enforce owns the list of what is blocked and rate-limited, and decides
// what may be on it. It runs in the plugin process and touches no device: rules go
// to the engine as commands, through a Sender. The engine's rules vanish with it;
// the Manager sends all of them to the next one.
//
// The allow list always wins: configured prefixes, the default gateways, this
// machine's own addresses, its DNS resolvers and the hosts to protect (the
// database above all). A prefix that contains one of them, or lies in one, is
// refused; a rule that gets into conflict later, because an address appeared, is
// taken away.
//
// Goroutines: every method of a Manager may be called from any. Changes take effect
// in the list at once; Run, of which there is one, sends them to the engine, looks
// after expiry and the allow list, saves the state and resolves names (in one
// goroutine of its own). Without Run, as in tests, Refresh, Resolve and Tick do
// the same step by step.
//
// Clocks: rules expire by Config.Clock, which is wall clock; the state file holds
// wall clock too, and a clock that was set back lengthens no rule beyond its own
// lifetime. Times of alerts (capture clock) are not used.
package enforce
