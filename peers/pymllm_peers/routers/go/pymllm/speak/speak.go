// Package speak lets an index of KV blocks be asked in pymllm's process protocol (docs/protocol.md).
package speak

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"sort"
)

// Index is what a program has to offer.
type Index interface {
	// Store lets a worker have blocks, pairs of the hash and the hash of the tokens; false where it says that
	// it does not know the parent.
	Store(worker int64, blocks [][2]int64, parent *int64, place Place) bool
	// Remove takes blocks from a worker.
	Remove(worker int64, hashes []int64, place Place)
	// Clear takes all blocks from a worker, which goes on or has left.
	Clear(worker int64)
	// Find returns the leading blocks of each worker that has any, with an adapter or none.
	Find(tokens []int64, adapter string) map[int64]int
	// Close ends what runs beside.
	Close()
}

// Place is what an event tells of blocks beside their hashes; empty is what is not told.
type Place struct {
	Medium  string
	Adapter string // of the sequence; a removal tells none
}

// Hello says who answers.
type Hello struct {
	Name, Version, Source string
	Capabilities          []string
}

// Config is a configuration, whose keys are all true or false; what is absent is false.
type Config map[string]any

// Has tells whether a key is there and true.
func (c Config) Has(key string) bool {
	value, isBool := c[key].(bool)
	return isBool && value
}

type object = map[string]any

type operation struct {
	Op     string     `json:"op"`
	Worker int64      `json:"worker"`
	Blocks [][2]int64 `json:"blocks"`
	Parent *int64     `json:"parent"`
	Hashes []int64    `json:"hashes"`
	Tokens []int64    `json:"tokens"`
	Early  bool       `json:"early"`
	Medium string     `json:"medium"`
	// ExtraKey is a namespace: null, a value, or an array whose second value is an adapter's name.
	ExtraKey json.RawMessage `json:"extra_key"`
}

func (o operation) place() Place { return Place{o.Medium, o.adapter()} }

func (o operation) adapter() string {
	var values []any
	if json.Unmarshal(o.ExtraKey, &values) != nil || len(values) < 2 {
		return ""
	}
	name, _ := values[1].(string)
	return name
}

type message struct {
	Say       string    `json:"say"`
	Step      int64     `json:"step"`
	Config    Config    `json:"config"`
	Operation operation `json:"op"`
	Flush     *bool     `json:"flush"`
}

// Serve answers until it is told goodbye.
func Serve(hello Hello, begin func(Config) Index) {
	reader := bufio.NewReaderSize(os.Stdin, 1<<20)
	writer := bufio.NewWriter(os.Stdout)
	var index Index
	make := func(config Config) {
		if index != nil {
			index.Close()
		}
		index = careful(begin(config), config)
	}
	config := Config{}
	for {
		line, err := reader.ReadBytes('\n')
		if err != nil {
			return
		}
		var asked message
		var answer object
		if err := json.Unmarshal(line, &asked); err != nil {
			answer = object{"say": "error", "message": err.Error()}
		} else {
			switch asked.Say {
			case "hello":
				answer = introduce(hello)
			case "start":
				config = asked.Config
				make(config)
				answer = object{"say": "started"}
			case "op":
				var result object
				if asked.Operation.Op == "reset" {
					make(config)
					result = object{"is": "done"}
				} else {
					result = apply(index, asked.Operation)
				}
				answer = object{"say": "outcome", "step": asked.Step, "outcome": object{"result": result}}
			case "bye":
				return
			default:
				answer = object{"say": "error", "message": "it was asked for " + asked.Say}
			}
		}
		text, _ := json.Marshal(answer)
		writer.Write(append(text, '\n'))
		if asked.Flush == nil || *asked.Flush {
			writer.Flush()
		}
	}
}

func introduce(hello Hello) object {
	return object{
		"say": "hello", "protocol": 1, "name": hello.Name, "version": hello.Version, "language": "Go",
		"kind": "index", "capabilities": hello.Capabilities, "source": hello.Source,
		"configurations": []Config{{"own_hashes": false}},
	}
}

// apply carries an operation out; what panics has failed.
func apply(index Index, asked operation) (result object) {
	defer func() {
		if reason := recover(); reason != nil {
			result = object{"is": "failed", "error": "Panic", "message": fmt.Sprint(reason)}
		}
	}()
	switch asked.Op {
	case "store_blocks":
		if !index.Store(asked.Worker, asked.Blocks, asked.Parent, asked.place()) {
			return object{"is": "not_there"}
		}
	case "remove_blocks":
		index.Remove(asked.Worker, asked.Hashes, asked.place())
	case "clear_worker", "drop_worker":
		index.Clear(asked.Worker)
	case "find_blocks":
		if !asked.Early {
			return object{"is": "leading", "workers": sorted(index.Find(asked.Tokens, asked.adapter()))}
		}
		return object{"is": "unsupported", "what": "an early answer"}
	default:
		return object{"is": "unsupported", "what": asked.Op}
	}
	return object{"is": "done"}
}

func sorted(found map[int64]int) [][2]int64 {
	pairs := make([][2]int64, 0, len(found))
	for worker, count := range found {
		pairs = append(pairs, [2]int64{worker, int64(count)})
	}
	sort.Slice(pairs, func(one, other int) bool { return pairs[one][0] < pairs[other][0] })
	return pairs
}
