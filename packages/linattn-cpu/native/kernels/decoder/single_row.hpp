// The whole model for a call of one row: a step of one sequence. Threads share each layer by its heads and by its hidden
// units (tensor parallelism, as in Megatron-LM). Each part multiplies by its columns of one matrix, then by its rows of
// the next. Parts exchange only their partial sums for the residual stream, twice a layer. Each part calculates the norms
// for itself: that takes less time than exchanging them.
#pragma once

#include "kernels/decoder/layers.hpp"

LINATTN_BEGIN
namespace decoding {

// Unused bytes after memory that other parts read or write: cores prefetch past the end of what they read.
inline constexpr std::int64_t kGapBytes = 4096;

// The two halves of a layer; the result of each is added to the residual stream.
enum Sublayer { attention, feed_forward_network };

// The memory of a part: one row of everything.
struct PartMemory {
    float* stream;  // the residual stream
    float* normed;  // the input of a layer's products
    float *qkv, *heads, *hidden;
    float* rotation;  // of rotary positions
    char* operand;    // a row converted for a product, and its scale
    float* scale;
    float *mapped, *weights;  // for `attend_head` and `write_parameters`
    float* partial_sums[2];   // of the result of each sublayer; the other parts read them
};

static PartMemory lay_out_part(Arena& arena, const DecoderModel& model, const DecoderCall& call) {
    const std::int64_t embed = round_up(model.embed, kPanel), hidden = round_up(model.hidden, kPanel);
    PartMemory part;
    part.stream = arena.take<float>(embed);
    part.normed = arena.take<float>(embed);
    part.qkv = arena.take<float>(round_up(qkv_numbers(model), kPanel));
    part.heads = arena.take<float>(embed);
    part.hidden = arena.take<float>(hidden);
    part.rotation = arena.take<float>(rotation_numbers(model));
    part.operand = arena.take<char>((embed > hidden ? embed : hidden) * kOperandBytes);
    part.scale = arena.take<float>(1);
    part.mapped = arena.take<float>(HeadMemory::numbers(model));
    part.weights = arena.take<float>(draw_numbers(model.tokens, call));
    for (float*& sums : part.partial_sums) {
        arena.take<char>(kGapBytes);
        sums = arena.take<float>(embed);
    }
    arena.take<char>(kGapBytes);
    return part;
}

// The memory of a call: that of its parts, then the head's parameters.
static std::int64_t bytes_of_part(const DecoderModel& model, const DecoderCall& call) {
    Arena size(nullptr);
    lay_out_part(size, model, call);
    return size.bytes();
}
static std::int64_t bytes_for_single_row(const DecoderModel& model, const DecoderCall& call) {
    const std::int64_t parameters = round_up(model.tokens.output.outputs, kPanel) * 4;
    return call.threads * bytes_of_part(model, call) + parameters;
}

// A thread's view of the row.
struct RowThread : Thread {
    Place place;
    char* memory;
    std::int64_t part_bytes;

    PartMemory memory_of(int part) const {
        Arena arena(memory + part * part_bytes);
        return lay_out_part(arena, model, call);
    }
    float* parameters() const { return reinterpret_cast<float*>(memory + member.parts * part_bytes); }
};

// The part of the layers that the thread holds, and its memory.
struct RowPart : RowThread {
    explicit RowPart(const RowThread& thread) : RowThread(thread), own(memory_of(thread.member.part)) {}

    PartMemory own;

    const float* partial_sums(Sublayer sublayer, int part) const {
        const char* const own_sums = reinterpret_cast<const char*>(own.partial_sums[sublayer]);
        return reinterpret_cast<const float*>(own_sums + (part - member.part) * part_bytes);
    }
    Range kv_heads() const { return share_of(model.kv_heads); }
    // The numbers of these heads in a row of keys or values, and of the queries that read them.
    Range keys() const { return numbers_of(kv_heads(), model.head_dim); }
    Range queries() const { return numbers_of(kv_heads(), group_of(model) * model.head_dim); }
    Range hidden_panels() const { return share_of(panels_of(model.hidden)); }
    ActivationFormat format() const { return activation_format(model.format, 1); }

private:
    static Range numbers_of(Range heads, std::int64_t each) { return {heads.low * each, heads.high * each}; }
};

// The panels and the inputs of a matrix that a part multiplies.
struct Shard {
    const PackedMatrix& matrix;
    Range panels, inputs;
};

static Shard columns_of(const PackedMatrix& matrix, Range panels) { return {matrix, panels, {0, matrix.inputs}}; }
static Shard rows_of(const PackedMatrix& matrix, Range inputs) {
    return {matrix, {0, panels_of(matrix.outputs)}, inputs};
}

// The whole panels that contain the numbers of a range.
static Range panels_around(Range numbers) {
    if (numbers.low == numbers.high) return {0, 0};
    return {numbers.low / kPanel, panels_of(numbers.high)};
}

// The columns of the part's numbers in one of the matrix's blocks of queries, keys and values, which starts at `first`.
static Shard columns_of_heads(const PackedMatrix& qkv, std::int64_t first, Range numbers) {
    return columns_of(qkv, panels_around({first + numbers.low, first + numbers.high}));
}

// The rows of the part's heads, in whole panels. The inputs of other heads in these panels are 0.
static Shard rows_of_heads(const RowPart& part, const PackedMatrix& out) {
    const Range panels = panels_around(part.queries());
    return rows_of(out, {panels.low * kPanel, panels.high * kPanel});
}

static Shard rows_of_hidden(const RowPart& part, const PackedMatrix& contract) {
    const Range panels = part.hidden_panels();
    return rows_of(contract, {panels.low * kPanel, panels.high * kPanel});
}

// A shard's inputs of a padded row, in the format that a product reads.
static Operand operand_of(const RowPart& part, const float* x, const Shard& shard) {
    const std::int64_t width = round_up(shard.matrix.inputs, kPanel);
    if (part.format() == ActivationFormat::floats) return {x, width, nullptr};
    const Range inputs{shard.inputs.low, round_up(shard.inputs.high, kPanel)};
    *part.own.scale = convert_row(part.format(), x, inputs, width, part.own.operand);
    return {part.own.operand, width, part.own.scale};
}

// Multiplies a shard's inputs of a row; finish(output, result) takes the results of W outputs each.
template <class Finish>
static void multiply(const RowPart& part, const float* inputs, const Shard& shard, const Finish& finish) {
    const PackedMatrix& matrix = shard.matrix;
    const Operand x = operand_of(part, inputs, shard);
    dispatch_formats(part.format(), part.model.format, [&](auto from) {
        const auto finish_panels = [&](std::int64_t panel, const auto& sums) {
            constexpr int kCount = sizeof(sums.of[0]) / kVectorBytes;
            for (int n = 0; n < kCount; ++n) {
                const std::int64_t output = panel * kPanel + n * W<float>;
                finish(output, scaled(part.model, matrix, output, sums.of[0][n]));
            }
        };
        for_each_product<decltype(from), 1>(x, 0, matrix, shard.panels, shard.inputs, finish_panels);
    });
}

// Writes x W + b.
static void multiply_into(const RowPart& part, const float* x, const Shard& shard, float* to) {
    multiply(part, x, shard,
             [&](std::int64_t output, Vec<float> y) { store(to + output, y + load(shard.matrix.bias + output)); });
}

// Writes the part's partial sums of the result of a sublayer.
static void multiply_partial(const RowPart& part, const float* x, const Shard& shard, Sublayer sublayer) {
    float* const to = part.own.partial_sums[sublayer];
    multiply(part, x, shard, [&](std::int64_t output, Vec<float> y) { store(to + output, y); });
}

// The residual stream after a sublayer, whose last matrix is given. With one part, the sums are those of a batch.
static void update_stream(const RowPart& part, const PackedMatrix& matrix, Sublayer sublayer) {
    const float* const residual = part.model.norm_first ? part.own.stream : part.own.normed;
    for (std::int64_t i = 0; i < part.model.embed; i += W<float>) {
        Vec<float> y = load(part.partial_sums(sublayer, 0) + i);
        for (int other = 1; other < part.member.parts; ++other) y += load(part.partial_sums(sublayer, other) + i);
        store(part.own.stream + i, y + load(matrix.bias + i) + load(residual + i));
    }
}

static void normalize_stream(const RowPart& part, const NormWeights* norm) {
    normalize_or_copy(part.own.stream, part.model.embed, norm, part.own.normed);
}

// Prefetches the state of the part's heads: the weights read since the last step have evicted it from the caches, and
// other cores have prefetched some of it.
static void prefetch_state(const RowPart& part, std::int64_t layer) {
    const std::int64_t D = part.model.head_dim, F = part.model.features;
    const Range heads = part.kv_heads();
    const std::int64_t first = (part.place.sequence * part.model.kv_heads + heads.low) * F;
    const std::int64_t numbers = (heads.high - heads.low) * F;
    prefetch_to_write(part.call.z[layer] + first, numbers * sizeof(float));
    prefetch_to_write(part.call.s[layer] + first * D, numbers * D * sizeof(float));
}

// Writes the residual stream before layer `index`; with index = num_layers, after the last layer. Before the first layer,
// also clears `qkv` and `heads`: their padding and other parts' heads stay 0.
static void write_stream_before(const RowPart& part, std::int64_t index) {
    if (index > 0) return update_stream(part, part.model.layers[index - 1].contract, feed_forward_network);
    embed_input(part, part.place, part.own.stream);
    write_rotation(part, part.place, part.own.rotation);
    std::memset(part.own.qkv, 0, round_up(qkv_numbers(part.model), kPanel) * sizeof(float));
    std::memset(part.own.heads, 0, round_up(part.model.embed, kPanel) * sizeof(float));
}

static void attend(const RowPart& part, std::int64_t index) {
    const PartMemory& own = part.own;
    const DecoderLayer& layer = part.model.layers[index];
    prefetch_state(part, index);
    write_stream_before(part, index);
    normalize_stream(part, norm_before(part.model, index));
    const std::int64_t keys = part.model.embed, values = keys + key_numbers(part.model);
    multiply_into(part, own.normed, columns_of_heads(layer.qkv, 0, part.queries()), own.qkv);
    multiply_into(part, own.normed, columns_of_heads(layer.qkv, keys, part.keys()), own.qkv);
    multiply_into(part, own.normed, columns_of_heads(layer.qkv, values, part.keys()), own.qkv);
    const std::int64_t position = position_of(part.call, part.place);
    const HeadInput input{part.place.sequence, position, own.normed, own.qkv, own.rotation, own.heads};
    const Range heads = part.kv_heads();
    for (std::int64_t head = heads.low; head < heads.high; ++head) {
        attend_head(part, index, input, head, own.mapped);
    }
    multiply_partial(part, own.heads, rows_of_heads(part, layer.out), attention);
}

static void feed_forward(const RowPart& part, std::int64_t index) {
    const PartMemory& own = part.own;
    const DecoderLayer& layer = part.model.layers[index];
    update_stream(part, layer.out, attention);
    normalize_stream(part, norm_between(part.model, layer));
    const Activation activation = part.model.activation;
    const PackedMatrix& activated = part.model.gated ? layer.gate : layer.expand;
    multiply(part, own.normed, columns_of(activated, part.hidden_panels()), [&](std::int64_t output, Vec<float> y) {
        store(own.hidden + output, activate(activation, y + load(activated.bias + output)));
    });
    if (part.model.gated) {
        multiply(part, own.normed, columns_of(layer.expand, part.hidden_panels()),
                 [&](std::int64_t output, Vec<float> y) {
                     store(own.hidden + output, load(own.hidden + output) * (y + load(layer.expand.bias + output)));
                 });
    }
    multiply_partial(part, own.hidden, rows_of_hidden(part, layer.contract), feed_forward_network);
}

// The model's last norm, and the head's parameters or, in a model of vectors, the output.
static void finish_row(const RowPart& part) {
    const DecoderModel& model = part.model;
    float* const normed = part.own.normed;
    write_stream_before(part, model.num_layers);
    normalize_stream(part, norm_before(model, model.num_layers));
    normalize(normed, model.embed, model.norm, normed);
    if (model.tokens.channels > 0) {
        const PackedMatrix& output = model.tokens.output;
        multiply_into(part, normed, columns_of(output, part.share_of(panels_of(output.outputs))), part.parameters());
    } else if (part.member.part == 0) {
        float* const to = part.call.outputs + part.place.sequence * part.call.inputs * model.embed;
        std::memcpy(to, normed, model.embed * sizeof(float));
    }
}

static void run_single_row(const Thread& thread, void* memory) {
    RowBlock block;
    Blocks(thread.call).next(block);
    const RowThread row{thread, block.places[0], static_cast<char*>(memory), bytes_of_part(thread.model, thread.call)};
    for (std::int64_t i = 0; i < thread.model.num_layers; ++i) {
        row.phase([&] { attend(RowPart(row), i); });
        row.phase([&] { feed_forward(RowPart(row), i); });
    }
    row.phase([&] { finish_row(RowPart(row)); });
    if (thread.model.tokens.channels == 0) return;
    row.phase([&] {
        if (thread.member.part == 0) {
            write_parameters(row, row.place.sequence, row.parameters(), row.memory_of(0).weights);
        }
    });
}

}  // namespace decoding
LINATTN_END
