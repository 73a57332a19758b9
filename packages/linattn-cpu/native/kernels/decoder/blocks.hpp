// The inputs of a call as rows, in blocks that go through the layers together.
#pragma once

#include "decoder.hpp"
#include "kernels/simd.hpp"

LINATTN_BEGIN
namespace decoding {

// The most rows that go through the layers together: enough to be limited by arithmetic, few enough that the
// activations stay in the cache.
inline constexpr std::int64_t kBlockRows = 128;

// Input number `input` of a sequence.
struct Place {
    std::int64_t sequence, input;
};

LINATTN_INLINE std::int64_t inputs_of(const DecoderCall& call, std::int64_t sequence) {
    return call.lengths == nullptr ? call.inputs : call.lengths[sequence];
}

// The rows of each block of a call; only the last one may have fewer.
static std::int64_t rows_of_blocks(const DecoderCall& call) {
    std::int64_t rows = call.lengths == nullptr ? call.batch * call.inputs : 0;
    for (std::int64_t b = 0; call.lengths != nullptr && b < call.batch; ++b) rows += call.lengths[b];
    const std::int64_t blocks = (rows + kBlockRows - 1) / kBlockRows;
    return blocks == 0 ? 0 : (rows + blocks - 1) / blocks;
}

// Rows that go through the layers together: inputs of one sequence after those of another.
struct RowBlock {
    std::int64_t rows, sequences;
    Place places[kBlockRows];             // of each row
    std::int64_t starts[kBlockRows + 1];  // the first row of each sequence, and the end of the last

    // The sequence with number `index` in the block.
    std::int64_t sequence(std::int64_t index) const { return places[starts[index]].sequence; }
    // The row of its last input in the block.
    std::int64_t last_row(std::int64_t index) const { return starts[index + 1] - 1; }
    // The number of sequences that end in the block: all of them, or all but the last.
    std::int64_t ends(const DecoderCall& call) const {
        const Place last = places[rows - 1];
        return sequences - (last.input + 1 < inputs_of(call, last.sequence));
    }
};

// Goes through all inputs of a call, without padding.
class Blocks {
public:
    explicit Blocks(const DecoderCall& call) : call_(call), most_(rows_of_blocks(call)) {}

    // Fills the next block; false after the last one.
    bool next(RowBlock& block) {
        block.rows = block.sequences = 0;
        while (at_.sequence < call_.batch && block.rows < most_) {
            const std::int64_t length = inputs_of(call_, at_.sequence);
            if (at_.input < length) block.starts[block.sequences++] = block.rows;
            while (at_.input < length && block.rows < most_) {
                block.places[block.rows++] = at_;
                ++at_.input;
            }
            if (at_.input >= length) at_ = {at_.sequence + 1, 0};
        }
        block.starts[block.sequences] = block.rows;
        return block.rows > 0;
    }

private:
    const DecoderCall& call_;
    std::int64_t most_;
    Place at_{0, 0};
};

}  // namespace decoding
LINATTN_END
