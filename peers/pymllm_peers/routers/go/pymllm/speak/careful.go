package speak

// careful puts a caller before an index who avoids what is known of it (peers/findings), where its
// configuration says so: with known_parents a worker stores nothing below a block that it does not have, and
// with single_blocks each event is about one block.
func careful(index Index, config Config) Index {
	if config.Has("single_blocks") {
		index = singleBlocks{index}
	}
	if config.Has("known_parents") {
		index = knownParents{index, map[int64]map[int64]bool{}}
	}
	return index
}

type singleBlocks struct{ Index }

func (c singleBlocks) Store(worker int64, blocks [][2]int64, parent *int64) bool {
	isStored := true
	for place := range blocks {
		isStored = c.Index.Store(worker, blocks[place:place+1], parent) && isStored
		parent = &blocks[place][0]
	}
	return isStored
}

type knownParents struct {
	Index
	had map[int64]map[int64]bool // by worker, by hash
}

func (c knownParents) Store(worker int64, blocks [][2]int64, parent *int64) bool {
	if parent != nil && !c.had[worker][*parent] {
		return false
	}
	if c.had[worker] == nil {
		c.had[worker] = map[int64]bool{}
	}
	for _, block := range blocks {
		c.had[worker][block[0]] = true
	}
	return c.Index.Store(worker, blocks, parent)
}

func (c knownParents) Remove(worker int64, hashes []int64) {
	for _, hash := range hashes {
		delete(c.had[worker], hash)
	}
	c.Index.Remove(worker, hashes)
}

func (c knownParents) Clear(worker int64) {
	delete(c.had, worker)
	c.Index.Clear(worker)
}
