// The workspace of a call: the activations of a block of rows, and the own memory of each part.
#pragma once

#include "kernels/decoder/rows.hpp"
#include "team.hpp"

LINATTN_BEGIN
namespace decoding {

// The most rows that go through the layers together: enough to be limited by arithmetic, few enough that the
// activations stay in the cache.
inline constexpr std::int64_t kBlockRows = 128;

// How a call is cut into blocks: some sequences at a time, and of their inputs some at a time.
struct Blocks {
    std::int64_t sequences, inputs;  // of a block, at most

    LINATTN_INLINE Blocks of(const DecoderCall& call) {
        const std::int64_t parts = (call.batch + kBlockRows - 1) / kBlockRows;
        const std::int64_t sequences = (call.batch + parts - 1) / parts;
        const std::int64_t inputs = kBlockRows / sequences;
        return {sequences, inputs < call.inputs ? inputs : call.inputs};
    }
    std::int64_t rows() const { return sequences * inputs; }
};

// Inputs `first` .. first + inputs - 1 of `sequences` sequences from `sequence` on; row r holds
// input first + r % inputs of sequence sequence + r / inputs.
struct RowBlock {
    std::int64_t sequence, sequences, first, inputs;

    std::int64_t rows() const { return sequences * inputs; }
    bool is_single_row() const { return rows() == 1; }
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
    const Blocks blocks = Blocks::of(call);
    const std::int64_t rows = blocks.rows(), embed = model.embed, hidden = model.hidden;
    // Room for a row of each part.
    const std::int64_t shared = rows > call.threads ? rows : call.threads;
    const std::int64_t widest = round_up(embed > hidden ? embed : hidden, kPanel);
    const std::int64_t sequences = call.tokens != nullptr || call.begins ? blocks.sequences : 0;
    Workspace space;
    space.stream = take_rows(arena, rows, embed);
    space.normed = take_rows(arena, shared, embed);
    space.normed.for_each_part = true;
    space.qkv = take_rows(arena, rows, 3 * embed);
    space.heads = take_rows(arena, rows, embed);
    space.hidden = take_rows(arena, rows, hidden);
    space.final_rows = take_rows(arena, sequences, embed);
    space.parameters = take_rows(arena, sequences, model.tokens.output.outputs);
    space.operand = arena.take<char>(shared * widest * kOperandBytes);
    space.scales = arena.take<float>(shared);
    space.mapped = take_rows(arena, call.threads, 2 * round_up(model.head_dim, W<float>));
    space.weights = take_rows(arena, call.top_p > 0 ? call.threads : 0, model.tokens.choices);
    return space;
}

}  // namespace decoding
LINATTN_END
