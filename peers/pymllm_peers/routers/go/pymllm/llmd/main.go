// llm-d's index in memory, as its pool of events writes it and its scorer reads it.
package main

import (
	"context"
	"fmt"

	"github.com/llm-d/llm-d-kv-cache/pkg/kvcache"
	"github.com/llm-d/llm-d-kv-cache/pkg/kvcache/kvblock"
	"github.com/llm-d/llm-d-kv-cache/pkg/kvevents"
	"k8s.io/apimachinery/pkg/util/sets"

	"pymllm/speak"
)

const (
	blockTokens = 2 // two numbers of 32 bits tell the hash of a block's tokens
	model       = "model"
)

type index struct {
	keys    kvblock.TokenProcessor
	blocks  kvblock.Index
	pool    *kvevents.Pool
	scorer  kvcache.KVBlockScorer
	workers map[string]int64
}

func (x *index) pod(worker int64) string {
	name := fmt.Sprint("pod-", worker)
	x.workers[name] = worker
	return name
}

// engineHash is never 0, which stands for no parent.
func engineHash(hash int64) uint64 { return uint64(hash) + 1 }

func (x *index) tell(worker int64, event kvevents.GenericEvent) {
	x.pool.Tell(x.pod(worker), model, event)
}

func (x *index) Store(worker int64, blocks [][2]int64, parent *int64, place speak.Place) bool {
	event := &kvevents.BlockStoredEvent{BlockSize: blockTokens, DeviceTier: place.Medium}
	if place.Adapter != "" {
		event.LoraName = &place.Adapter
	}
	if parent != nil {
		event.ParentHash = engineHash(*parent)
	}
	for _, block := range blocks {
		event.BlockHashes = append(event.BlockHashes, engineHash(block[0]))
		event.Tokens = append(event.Tokens, tokensOf(block[1])...)
	}
	x.tell(worker, event)
	return true
}

func tokensOf(hash int64) []uint32 { return []uint32{uint32(hash >> 32), uint32(hash)} }

func (x *index) Remove(worker int64, hashes []int64, place speak.Place) {
	event := &kvevents.BlockRemovedEvent{DeviceTier: place.Medium}
	for _, hash := range hashes {
		event.BlockHashes = append(event.BlockHashes, engineHash(hash))
	}
	x.tell(worker, event)
}

func (x *index) Clear(worker int64) { x.tell(worker, &kvevents.AllBlocksClearedEvent{}) }

// Find does what its indexer does with the tokens of a prompt, for all pods; an adapter's name is the model's.
func (x *index) Find(tokens []int64, adapter string) map[int64]int {
	name := model
	if adapter != "" {
		name = adapter
	}
	found := map[int64]int{}
	var prompt []uint32
	for _, each := range tokens {
		prompt = append(prompt, tokensOf(each)...)
	}
	keys, err := x.keys.TokensToKVBlockKeys(kvblock.EmptyBlockHash, prompt, name, nil)
	demand(err)
	if len(keys) == 0 {
		return found
	}
	pods, err := x.blocks.Lookup(context.Background(), keys, sets.New[string]())
	demand(err)
	scores, err := x.scorer.Score(context.Background(), keys, pods)
	demand(err)
	for pod, score := range scores {
		found[x.workers[pod]] = int(score)
	}
	return found
}

func (x *index) Close() {}

func demand(err error) {
	if err != nil {
		panic(err)
	}
}

func begin(config speak.Config) speak.Index {
	keys, err := kvblock.NewChunkedTokenDatabase(&kvblock.TokenProcessorConfig{BlockSizeTokens: blockTokens})
	demand(err)
	blocks, err := kvblock.NewInMemoryIndex(nil)
	demand(err)
	scoring := kvcache.DefaultKVBlockScorerConfig()
	for _, medium := range scoring.BackendConfigs {
		medium.Weight = 1 // so that a score is a number of blocks
	}
	scorer, err := kvcache.NewKVBlockScorer(scoring)
	demand(err)
	pool := kvevents.NewPool(&kvevents.Config{}, blocks, keys, nil)
	return &index{keys, blocks, pool, scorer, map[string]int64{}}
}

func main() {
	speak.Serve(speak.Hello{
		Name: "llm-d", Version: "7be76e1", Source: "github.com/llm-d/llm-d-kv-cache",
		Capabilities: []string{"exact_removals", "lora", "media"},
	}, begin)
}
