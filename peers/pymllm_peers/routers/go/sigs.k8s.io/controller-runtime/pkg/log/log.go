// Package log stands in for what finds a log.
package log

import (
	"context"

	"github.com/go-logr/logr"
)

// FromContext returns one that says nothing.
func FromContext(context.Context) logr.Logger { return logr.Logger{} }
