package speak

// careful puts a caller before an index who avoids what is known of it (peers/findings), where its
// configuration says so: with known_parents a worker stores nothing below a block that it does not have, and
// with single_blocks each event is about one block.
func careful(index Index, config Config) Index {
	if config.Has("single_blocks") {
		index = singleBlocks{index}
	}
	if config.Has("known_parents") {
		index = knownParents{index, map[int64]map[int64]media{}}
	}
	return index
}

type singleBlocks struct{ Index }

func (c singleBlocks) Store(worker int64, blocks [][2]int64, parent *int64, place Place) bool {
	isStored := true
	for at := range blocks {
		isStored = c.Index.Store(worker, blocks[at:at+1], parent, place) && isStored
		parent = &blocks[at][0]
	}
	return isStored
}

type media map[string]bool

type knownParents struct {
	Index
	had map[int64]map[int64]media // by worker, by hash
}

func (c knownParents) Store(worker int64, blocks [][2]int64, parent *int64, place Place) bool {
	if parent != nil && len(c.had[worker][*parent]) == 0 {
		return false
	}
	if c.had[worker] == nil {
		c.had[worker] = map[int64]media{}
	}
	for _, block := range blocks {
		if c.had[worker][block[0]] == nil {
			c.had[worker][block[0]] = media{}
		}
		c.had[worker][block[0]][place.Medium] = true
	}
	return c.Index.Store(worker, blocks, parent, place)
}

func (c knownParents) Remove(worker int64, hashes []int64, place Place) {
	for _, hash := range hashes {
		delete(c.had[worker][hash], place.Medium)
	}
	c.Index.Remove(worker, hashes, place)
}

func (c knownParents) Clear(worker int64) {
	delete(c.had, worker)
	c.Index.Clear(worker)
}
