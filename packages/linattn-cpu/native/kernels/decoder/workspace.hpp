// The workspace of a call: the activations of a block of rows, and the own memory of each part.
#pragma once

#include "kernels/decoder/rows.hpp"
#include "team.hpp"

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

// The sequences that have ended, and whose parameters are not computed yet: no more than a block has rows.
struct Ended {
    std::int64_t count = 0;
    std::int64_t sequences[kBlockRows];
};

// Float32 rows, each padded to whole panels.
struct Buffer {
    float* data;
    std::int64_t width;
    bool for_each_part = false;  // with a single row, each part has its own copy

    float* row(std::int64_t r) const { return data + r * width; }
};

// The memory of a call.
struct Workspace {
    Buffer stream;  // the residual stream
    Buffer normed;  // the input of a layer's products
    Buffer qkv, heads, hidden;
    Buffer final_rows;  // of each sequence after its last input, normalized
    Buffer parameters;  // of the head
    char* operand;      // rows converted for a product, and their scales
    float* scales;
    Buffer mapped;   // phi(q) and phi(k) of one head, a row for each part
    Buffer weights;  // of the tokens that top_p may pass, a row for each part
};

static Buffer take_rows(Arena& arena, std::int64_t count, std::int64_t numbers) {
    const std::int64_t width = round_up(numbers, kPanel);
    return {arena.take<float>(count * width), width};
}

static Workspace lay_out(Arena& arena, const DecoderModel& model, const DecoderCall& call) {
    const std::int64_t rows = rows_of_blocks(call), embed = model.embed, hidden = model.hidden;
    // Room for a row of each part.
    const std::int64_t shared = rows > call.threads ? rows : call.threads;
    const std::int64_t widest = round_up(embed > hidden ? embed : hidden, kPanel);
    const std::int64_t most = call.batch < rows ? call.batch : rows;
    const std::int64_t sequences = call.tokens != nullptr || call.begins ? most : 0;
    Workspace space;
    space.stream = take_rows(arena, rows, embed);
    space.normed = take_rows(arena, shared, embed);
    space.normed.for_each_part = true;
    space.qkv = take_rows(arena, rows, 3 * embed);
    space.heads = take_rows(arena, rows, embed);
    space.hidden = take_rows(arena, rows, hidden);
    space.final_rows = take_rows(arena, sequences, embed);
    space.parameters = take_rows(arena, sequences, model.tokens.output.outputs);
    space.operand = arena.take<char>(operand_rows(shared) * widest * kOperandBytes + kOperandSlack);
    space.scales = arena.take<float>(shared);
    space.mapped = take_rows(arena, call.threads, 2 * round_up(model.head_dim, W<float>));
    space.weights = take_rows(arena, call.top_p > 0 ? call.threads : 0, model.tokens.choices);
    return space;
}

}  // namespace decoding
LINATTN_END
