// ScaleLLM's BlockAllocator and PrefixCache for an adapter in Python: plain numbers in, plain numbers out.
//
// A block is in somebody's hands as long as a copy of its Block lives. So a caller's blocks are copies here, a
// hold is the copies that a match gave, and what the cache adopted is no longer among the caller's.
//
// Compiled with -fno-access-control: nodes and free blocks can only be looked at from inside.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "memory/block_allocator.h"
#include "memory/prefix_cache.h"

namespace {

using llm::Block;
using llm::BlockAllocator;
using llm::PrefixCache;

struct Memory {
  Memory(int32_t blocks, int32_t block_size)
      : block_size(block_size),
        allocator(new BlockAllocator(blocks + 1, block_size)),
        cache(std::make_unique<PrefixCache>(block_size)),
        padding(allocator->allocate()) {}

  ~Memory() {
    holds.clear();
    own.clear();
    cache.reset();
    padding = Block();
    // An allocator that misses blocks ends the process; the judge has seen by then that they are gone.
    if (allocator->num_free_blocks() == allocator->num_total_blocks()) {
      delete allocator;
    }
  }

  int32_t block_size;
  BlockAllocator* allocator;
  std::unique_ptr<PrefixCache> cache;
  Block padding;  // as their BlockManager has it
  std::map<int32_t, Block> own;
  std::map<int32_t, std::vector<Block>> holds;
  int32_t next_hold = 1;
};

std::string failure;

// What an exception was about is told by `scale_failure`; the number itself is -2.
template <typename Act>
int32_t guarded(Act act) {
  try {
    return act();
  } catch (const std::exception& error) {
    failure = error.what();
    return -2;
  }
}

int32_t write(const std::vector<Block>& blocks, int32_t* out) {
  for (const Block& block : blocks) {
    *out++ = block.id();
  }
  return static_cast<int32_t>(blocks.size());
}

// Returns the block of a number: the caller's, one of a hold, or one that nobody will count.
Block block_of(const Memory& memory, int32_t id) {
  const auto found = memory.own.find(id);
  if (found != memory.own.end()) {
    return found->second;
  }
  for (const auto& [number, blocks] : memory.holds) {
    for (const Block& block : blocks) {
      if (block.id() == id) {
        return block;
      }
    }
  }
  return Block(id);
}

// Says what is wrong with the tree, or nothing.
std::string look_inside(const Memory& memory) {
  const PrefixCache& cache = *memory.cache;
  std::set<const PrefixCache::Node*> listed;
  for (const auto* node = cache.lru_front_.next; node != &cache.lru_back_; node = node->next) {
    if (!listed.insert(node).second || node->next->prev != node) {
      return "the list of nodes by recency is no list";
    }
  }
  size_t nodes = 0, blocks = 0;
  std::vector<const PrefixCache::Node*> left{&cache.root_};
  while (!left.empty()) {
    const auto* node = left.back();
    left.pop_back();
    for (const auto* child : node->children) {
      ++nodes;
      blocks += child->blocks.size();
      if (child->parent != node) {
        return "a node has another parent than the one below which it stands";
      }
      if (child->blocks.empty() ||
          child->token_ids.size() != child->blocks.size() * memory.block_size) {
        return "a node has other tokens than its blocks";
      }
      if (listed.count(child) == 0) {
        return "a node is not in the list of nodes by recency";
      }
      left.push_back(child);
    }
  }
  if (nodes != listed.size() || nodes != cache.num_nodes()) {
    return "nodes are not as many as are counted";
  }
  return blocks == cache.num_blocks() ? "" : "blocks are not as many as are counted";
}

}  // namespace

extern "C" {

const char* scale_failure() { return failure.c_str(); }

Memory* scale_new(int32_t blocks, int32_t block_size, int32_t step) {
  absl::step = step;
  Memory* made = nullptr;
  guarded([&] {
    made = new Memory(blocks, block_size);
    return 0;
  });
  return made;
}

void scale_delete(Memory* memory) { delete memory; }

int32_t scale_free_blocks(Memory* memory) {
  return static_cast<int32_t>(memory->allocator->num_free_blocks());
}

int32_t scale_cached_blocks(Memory* memory) {
  return static_cast<int32_t>(memory->cache->num_blocks());
}

// Returns -1 where there are too few: the allocator expects to be asked before.
int32_t scale_alloc(Memory* memory, int32_t count, int32_t* out) {
  return guarded([&] {
    if (static_cast<size_t>(count) > memory->allocator->num_free_blocks()) {
      return -1;
    }
    const auto blocks = memory->allocator->allocate(count);
    for (const Block& block : blocks) {
      memory->own.emplace(block.id(), block);
    }
    return write(blocks, out);
  });
}

int32_t scale_free(Memory* memory, const int32_t* ids, int32_t count) {
  return guarded([&] {
    for (int32_t place = 0; place < count; ++place) {
      memory->own.erase(ids[place]);
    }
    return 0;
  });
}

int32_t scale_match(Memory* memory, const int32_t* tokens, int32_t count, int32_t* out) {
  return guarded([&] {
    return write(memory->cache->match(std::vector<int32_t>(tokens, tokens + count)), out);
  });
}

// Returns how many tokens were new.
int32_t scale_insert(Memory* memory, const int32_t* tokens, int32_t count, const int32_t* ids) {
  return guarded([&] {
    std::vector<Block> blocks;
    for (int32_t place = 0; place < count / memory->block_size; ++place) {
      blocks.push_back(block_of(*memory, ids[place]));
    }
    const size_t fresh = memory->cache->insert(std::vector<int32_t>(tokens, tokens + count), blocks);
    for (size_t place = blocks.size() - fresh / memory->block_size; place < blocks.size(); ++place) {
      memory->own.erase(ids[place]);
    }
    return static_cast<int32_t>(fresh);
  });
}

// Writes what went back to the allocator, and returns how many blocks the cache says that it evicted.
int32_t scale_evict(Memory* memory, int32_t count, int32_t* out, int32_t* freed) {
  return guarded([&] {
    const BlockAllocator& allocator = *memory->allocator;
    const size_t before = allocator.num_free_blocks();
    const size_t evicted = memory->cache->evict(count);
    *freed = static_cast<int32_t>(allocator.num_free_blocks() - before);
    for (size_t place = before; place < allocator.num_free_blocks(); ++place) {
      *out++ = allocator.free_blocks_[place];
    }
    return static_cast<int32_t>(evicted);
  });
}

// Returns the number of a hold of all blocks of a key, or -1 where the cache has not all of them.
int32_t scale_hold(Memory* memory, const int32_t* tokens, int32_t count) {
  return guarded([&] {
    auto blocks = memory->cache->match(std::vector<int32_t>(tokens, tokens + count));
    if (blocks.size() * memory->block_size != static_cast<size_t>(count)) {
      return -1;
    }
    memory->holds.emplace(memory->next_hold, std::move(blocks));
    return memory->next_hold++;
  });
}

void scale_release(Memory* memory, int32_t hold) { memory->holds.erase(hold); }

// Ends all holds and begins with a new cache, as they have no way to empty one.
int32_t scale_reset(Memory* memory, int32_t* out) {
  return guarded([&] {
    const BlockAllocator& allocator = *memory->allocator;
    memory->holds.clear();
    const size_t before = allocator.num_free_blocks();
    memory->cache = std::make_unique<PrefixCache>(memory->block_size);
    // Children are a set of pointers, so that a tree lets go of its blocks in another order each time.
    auto& free_blocks = memory->allocator->free_blocks_;
    std::sort(free_blocks.begin() + before, free_blocks.begin() + allocator.num_free_blocks());
    for (size_t place = before; place < allocator.num_free_blocks(); ++place) {
      *out++ = allocator.free_blocks_[place];
    }
    return static_cast<int32_t>(allocator.num_free_blocks() - before);
  });
}

// Writes for every cached block, parents first, its number, that of the block above it or 0, the copies of it
// that others have, and its tokens; returns how many blocks there are.
int32_t scale_inspect(Memory* memory, int32_t* out) {
  return guarded([&] {
    struct Place {
      const PrefixCache::Node* node;
      int32_t above;
    };
    int32_t count = 0;
    std::vector<Place> left{{&memory->cache->root_, 0}};
    for (size_t at = 0; at < left.size(); ++at) {
      const auto [node, first_above] = left[at];
      int32_t above = first_above;
      for (size_t place = 0; place < node->blocks.size(); ++place) {
        const Block& block = node->blocks[place];
        *out++ = block.id();
        *out++ = above;
        *out++ = static_cast<int32_t>(block.ref_count()) - 1;
        std::memcpy(out, node->token_ids.data() + place * memory->block_size,
                    memory->block_size * sizeof(int32_t));
        out += memory->block_size;
        above = block.id();
        ++count;
      }
      // Here, too, the order of children is another one each time.
      const size_t first = left.size();
      for (const auto* child : node->children) {
        left.push_back({child, above});
      }
      std::sort(left.begin() + first, left.end(), [](const Place& one, const Place& other) {
        return one.node->blocks.front().id() < other.node->blocks.front().id();
      });
    }
    return count;
  });
}

// Returns what a walk from inside found to be wrong, or an empty text.
const char* scale_audit(Memory* memory) {
  failure = look_inside(*memory);
  return failure.c_str();
}

}  // extern "C"
