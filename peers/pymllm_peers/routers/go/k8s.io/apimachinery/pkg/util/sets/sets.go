// Package sets stands in for sets.
package sets

// Set is a set.
type Set[T comparable] map[T]struct{}

// New makes one.
func New[T comparable](members ...T) Set[T] {
	made := Set[T]{}
	for _, member := range members {
		made[member] = struct{}{}
	}
	return made
}

// Has tells whether something is in it.
func (s Set[T]) Has(member T) bool {
	_, isThere := s[member]
	return isThere
}

// Len counts them.
func (s Set[T]) Len() int { return len(s) }
