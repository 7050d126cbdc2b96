// Package control owns the unix socket through which people and programs ask the
// plugin process to block, unblock and rate-limit, and to tell what it does. Server
// is the plugin's side, Client that of the subcommands.
//
// Who may ask: root, the user of the plugin process, and members of the group of the
// socket file. The kernel checks the mode of the file (0660), and the server checks
// the credentials of every peer once more, because a mode is quickly changed.
//
// Goroutines: Listen starts one that accepts, and one per client, at most maxClients
// at a time; Close ends them all and removes the file. Requests are bounded in size
// and in time. Times in messages are wall clock in ns; deadlines are the kernel's.
package control
