// Package packaging tests the deb and the rpm in a throw-away root: the machine's own
// files under an overlay in memory, in a mount and a network namespace that end with the
// test. Nothing that dpkg, rpm or the packages' scripts do there reaches the machine.
// It needs root.
package packaging
