package kvevents

import "context"

// Tell processes an event at once, as the worker of its pod's queue would.
func (p *Pool) Tell(podIdentifier, modelName string, event GenericEvent) {
	p.processEventBatch(context.Background(), &EventBatch{Events: []GenericEvent{event}}, podIdentifier, modelName)
}
