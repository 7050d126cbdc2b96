// Package kernel61 boots the oldest kernel that is supported, Linux 6.1 of Debian 12, in
// an emulator and lets its verifier judge the steering programs: the tests of
// agp/steer run there, as one static binary in an initial file system.
//
// The kernel comes from the host's package manager and is kept in build/kernel61. The
// guest has no disk and no network; it ends by itself or is killed with the test.
package kernel61
