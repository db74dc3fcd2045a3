// Package xxhash stands in for a hash function: FNV-1a over the seed and what is written.
package xxhash

import (
	"encoding/binary"
	"hash"
	"hash/fnv"
)

// Digest hashes what is written to it.
type Digest struct{ hash.Hash64 }

// NewWithSeed begins with a seed.
func NewWithSeed(seed uint64) *Digest {
	made := &Digest{fnv.New64a()}
	made.ResetWithSeed(seed)
	return made
}

// ResetWithSeed begins again.
func (d *Digest) ResetWithSeed(seed uint64) {
	d.Reset()
	d.Write(binary.LittleEndian.AppendUint64(nil, seed))
}
