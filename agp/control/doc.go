// Package control owns the unix socket through which people and programs ask the
// plugin process to block, unblock and rate-limit, and to tell what it does. Server
// is the plugin's side, Client that of the subcommands.
//
// A second socket shows what the engine does to those who only watch: ViewServer is the
// plugin's side, Viewer that of "top". Viewers can change nothing and hold up nothing.
//
// Who may ask, or watch: root, the user of the plugin process, and members of the group of the
// socket file. The kernel checks the mode of the file (0660), and the server checks
// the credentials of every peer once more, because a mode is quickly changed.
//
// Goroutines: Listen starts one that accepts, and one per client, at most maxClients
// at a time; Close ends them all and removes the file. Requests are bounded in size
// and in time. Times in messages are wall clock in ns; deadlines are the kernel's.
package control
