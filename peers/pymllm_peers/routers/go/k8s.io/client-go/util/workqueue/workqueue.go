// Package workqueue stands in for queues of messages: events are told directly here.
package workqueue

// TypedRateLimitingInterface is a queue.
type TypedRateLimitingInterface[T any] interface {
	Add(T)
	Get() (T, bool)
	Done(T)
	Forget(T)
	ShutDown()
}

// TypedRateLimiter limits nothing.
type TypedRateLimiter[T any] struct{}

// DefaultTypedControllerRateLimiter returns one.
func DefaultTypedControllerRateLimiter[T any]() TypedRateLimiter[T] { return TypedRateLimiter[T]{} }

// NewTypedRateLimitingQueue makes none.
func NewTypedRateLimitingQueue[T any](TypedRateLimiter[T]) TypedRateLimitingInterface[T] {
	panic("a queue is a stand-in")
}
