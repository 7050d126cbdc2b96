// Package top shows a running engine in a terminal: Screen collects what a viewer is shown
// and renders it to any size, Model is that screen as a bubbletea program.
//
// Screen and Model start no goroutine and read no clock; times are those of the plugin that
// is watched, and rates are differences between two views. What is kept does not grow: a
// fixed number of past rates of a fixed number of names. Names come from traffic, files and
// models and are never sent to the terminal as they are.
package top
