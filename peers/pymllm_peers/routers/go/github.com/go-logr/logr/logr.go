// Package logr stands in for a log that nobody reads here.
package logr

// Logger says nothing.
type Logger struct{}

// V returns it for another level.
func (l Logger) V(int) Logger { return l }

// WithName returns it under a name.
func (l Logger) WithName(string) Logger { return l }

// Enabled tells that nothing is said.
func (l Logger) Enabled() bool { return false }

// Info says nothing.
func (l Logger) Info(string, ...any) {}

// Error says nothing.
func (l Logger) Error(error, string, ...any) {}
