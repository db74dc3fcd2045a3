// Package cbor stands in for an encoding: what is hashed is written in JSON.
package cbor

import "encoding/json"

// EncOptions are none.
type EncOptions struct{}

// EncMode encodes.
type EncMode struct{}

// CanonicalEncOptions returns them.
func CanonicalEncOptions() EncOptions { return EncOptions{} }

// EncMode makes an encoder.
func (EncOptions) EncMode() (EncMode, error) { return EncMode{}, nil }

// Marshal writes a value.
func (EncMode) Marshal(value any) ([]byte, error) { return json.Marshal(value) }
