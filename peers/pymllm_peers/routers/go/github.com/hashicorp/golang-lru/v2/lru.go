// Package lru stands in for a table that forgets the least recent where it is full.
package lru

import (
	"container/list"
	"fmt"
)

type entry[K comparable, V any] struct {
	key   K
	value V
}

// Cache is the table; of one goroutine, as it is used here.
type Cache[K comparable, V any] struct {
	size   int
	order  *list.List // the most recent first
	places map[K]*list.Element
}

// New makes one of a size.
func New[K comparable, V any](size int) (*Cache[K, V], error) {
	if size <= 0 {
		return nil, fmt.Errorf("the size is %d; it must be positive", size)
	}
	return &Cache[K, V]{size, list.New(), map[K]*list.Element{}}, nil
}

// Add puts a value in front, and tells whether another one was forgotten for it.
func (c *Cache[K, V]) Add(key K, value V) bool {
	if place, isThere := c.places[key]; isThere {
		place.Value = entry[K, V]{key, value}
		c.order.MoveToFront(place)
		return false
	}
	c.places[key] = c.order.PushFront(entry[K, V]{key, value})
	if len(c.places) <= c.size {
		return false
	}
	c.Remove(c.order.Back().Value.(entry[K, V]).key)
	return true
}

// ContainsOrAdd adds what is not there; tells whether it was, and whether another one was forgotten.
func (c *Cache[K, V]) ContainsOrAdd(key K, value V) (bool, bool) {
	if _, isThere := c.places[key]; isThere {
		return true, false
	}
	return false, c.Add(key, value)
}

// Get returns a value, which is the most recent then.
func (c *Cache[K, V]) Get(key K) (V, bool) {
	if place, isThere := c.places[key]; isThere {
		c.order.MoveToFront(place)
	}
	return c.Peek(key)
}

// Peek returns a value and changes nothing.
func (c *Cache[K, V]) Peek(key K) (V, bool) {
	if place, isThere := c.places[key]; isThere {
		return place.Value.(entry[K, V]).value, true
	}
	var none V
	return none, false
}

// Remove tells whether it was there.
func (c *Cache[K, V]) Remove(key K) bool {
	place, isThere := c.places[key]
	if isThere {
		c.order.Remove(place)
		delete(c.places, key)
	}
	return isThere
}

// Keys returns all keys, the least recent first.
func (c *Cache[K, V]) Keys() []K {
	keys := make([]K, 0, len(c.places))
	for place := c.order.Back(); place != nil; place = place.Prev() {
		keys = append(keys, place.Value.(entry[K, V]).key)
	}
	return keys
}

// Len counts them.
func (c *Cache[K, V]) Len() int { return len(c.places) }
