// aibrix's SyncPrefixHashTable, the index that its router keeps by the events of servers.
package main

import (
	"encoding/binary"
	"fmt"

	"github.com/vllm-project/aibrix/pkg/utils/syncprefixcacheindexer"

	"pymllm/speak"
)

const (
	blockBytes = 16 // of tokens, which are bytes here, as it takes them by default
	mostBlocks = 100
	noLora     = -1
)

// index asks the table about each worker's model: one for all, or with own_contexts one for each.
type index struct {
	table       *syncprefixcacheindexer.SyncPrefixHashTable
	ownContexts bool
	workers     map[int64]bool
}

func (x *index) model(worker int64) string {
	if x.ownContexts {
		return fmt.Sprint("model-", worker)
	}
	return "model"
}

func pod(worker int64) string { return fmt.Sprint("pod-", worker) }

func bytesOf(tokens int64) []byte {
	return binary.BigEndian.AppendUint64(make([]byte, blockBytes-8), uint64(tokens))
}

func (x *index) Store(worker int64, blocks [][2]int64, parent *int64, _ speak.Place) bool {
	x.workers[worker] = true
	event := syncprefixcacheindexer.BlockStored{
		ParentBlockHash: parent, ModelName: x.model(worker), LoraID: noLora, SourcePod: pod(worker),
	}
	for _, block := range blocks {
		event.BlockHashes = append(event.BlockHashes, block[0])
		event.Tokens = append(event.Tokens, bytesOf(block[1]))
	}
	demand(x.table.ProcessBlockStored(event))
	return true
}

func (x *index) Remove(worker int64, hashes []int64, _ speak.Place) {
	demand(x.table.ProcessBlockRemoved(syncprefixcacheindexer.BlockRemoved{
		BlockHashes: hashes, ModelName: x.model(worker), LoraID: noLora, SourcePod: pod(worker),
	}))
}

// Clear does what aibrix's handler does where a server has cleared its cache, and where a pod is deleted.
func (x *index) Clear(worker int64) {
	demand(x.table.RemovePrefix(x.model(worker), noLora, pod(worker)))
}

// Find asks for percents, and tells blocks.
func (x *index) Find(tokens []int64, _ string) map[int64]int {
	if len(tokens) > mostBlocks {
		panic(fmt.Sprintf("of %d blocks no percent tells how many; it tells of %d at most", len(tokens), mostBlocks))
	}
	var text []byte
	for _, each := range tokens {
		text = append(text, bytesOf(each)...)
	}
	ready := map[string]struct{}{}
	for worker := range x.workers {
		ready[pod(worker)] = struct{}{}
	}
	found := map[int64]int{}
	for worker := range x.workers {
		percents, _ := x.table.MatchPrefix(x.model(worker), noLora, text, ready)
		if percent, isThere := percents[pod(worker)]; isThere {
			found[worker] = (percent*len(tokens) + 99) / 100
		}
	}
	return found
}

func (x *index) Close() { x.table.Close() }

func demand(err error) {
	if err != nil {
		panic(err)
	}
}

func begin(config speak.Config) speak.Index {
	table := syncprefixcacheindexer.NewSyncPrefixHashTable()
	return &index{table, config.Has("own_contexts"), map[int64]bool{}}
}

func main() {
	speak.Serve(speak.Hello{
		Name: "aibrix", Version: "e3e10f9", Source: "github.com/vllm-project/aibrix",
		Capabilities: []string{"exact_removals"},
	}, begin)
}
