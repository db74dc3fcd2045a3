package kvblock

import "errors"

// What is chosen by a configuration, and not here, needs a server or other packages.

var errStandIn = errors.New("this index is a stand-in")

// RedisIndexConfig stands in.
type RedisIndexConfig struct{}

// CostAwareMemoryIndexConfig stands in.
type CostAwareMemoryIndexConfig struct{}

// NewRedisIndex makes none.
func NewRedisIndex(*RedisIndexConfig) (Index, error) { return nil, errStandIn }

// NewValkeyIndex makes none.
func NewValkeyIndex(*RedisIndexConfig) (Index, error) { return nil, errStandIn }

// NewCostAwareMemoryIndex makes none.
func NewCostAwareMemoryIndex(*CostAwareMemoryIndexConfig) (Index, error) { return nil, errStandIn }

// NewInstrumentedIndex counts nothing.
func NewInstrumentedIndex(next Index) Index { return next }
