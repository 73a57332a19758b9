// The whole model for a call of one row, as a step of one sequence is: threads share each layer by its heads and by its
// hidden units (tensor parallelism, as in Megatron-LM).
//
// A part has some of the heads and some of the hidden units, with their columns of one matrix and their rows of the
// next one. All that the parts tell each other is what each of them adds to the residual stream, twice a layer. What
// they all need, such as the norms, each calculates for itself: a step is short, and a message to another core takes
// longer.
#pragma once

#include "kernels/decoder/layers.hpp"

LINATTN_BEGIN
namespace decoding {

// With fewer heads than this, one head may be too much work for one of several threads.
inline constexpr std::int64_t kFewHeads = 4;

static bool is_single_row(const DecoderModel& model, const DecoderCall& call) {
    return rows_of_blocks(call) == 1 && (model.heads >= kFewHeads || model.heads >= call.threads);
}

static int parts_of_single_row(const DecoderModel& model, const DecoderCall& call) {
    return model.heads < call.threads ? static_cast<int>(model.heads) : call.threads;
}

// A core prefetches past the end of the memory that it reads, so what it finds there should not be another one's.
inline constexpr std::int64_t kGap = 4096;

// What a part adds to the residual stream is the result of one of two sublayers.
enum class Sublayer { attention, feed_forward };

// The memory of a part: one row of everything.
struct PartMemory {
    float* stream;  // the residual stream
    float* normed;  // the input of a layer's products
    float *qkv, *heads, *hidden;
    char* operand;  // a row converted for a product, and its scale
    float* scale;
    float *mapped, *weights;  // for `attend_head` and `write_parameters`
    float* addends[2];        // for each sublayer; the other parts read them
};

static PartMemory lay_out_part(Arena& arena, const DecoderModel& model, const DecoderCall& call) {
    const std::int64_t embed = round_up(model.embed, kPanel), hidden = round_up(model.hidden, kPanel);
    PartMemory part;
    part.stream = arena.take<float>(embed);
    part.normed = arena.take<float>(embed);
    part.qkv = arena.take<float>(round_up(3 * model.embed, kPanel));
    part.heads = arena.take<float>(embed);
    part.hidden = arena.take<float>(hidden);
    part.operand = arena.take<char>((embed > hidden ? embed : hidden) * kOperandBytes);
    part.scale = arena.take<float>(1);
    part.mapped = arena.take<float>(mapped_numbers(model));
    part.weights = arena.take<float>(weight_numbers(model, call));
    for (float*& addend : part.addends) {
        arena.take<char>(kGap);
        addend = arena.take<float>(embed);
    }
    arena.take<char>(kGap);
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
    return parts_of_single_row(model, call) * bytes_of_part(model, call) + parameters;
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

// The part of the row that the thread holds.
struct RowPart : RowThread {
    explicit RowPart(const RowThread& thread) : RowThread(thread), own(memory_of(thread.member.part)) {}

    PartMemory own;

    const float* addend(Sublayer sublayer, int part) const {
        const char* const mine = reinterpret_cast<const char*>(own.addends[static_cast<int>(sublayer)]);
        return reinterpret_cast<const float*>(mine + (part - member.part) * part_bytes);
    }
    Share heads() const { return share_of(model.heads); }
    Share hidden_panels() const { return share_of(panels_of(model.hidden)); }
    ActivationFormat format() const { return activation_format(model.format, 1); }
};

// Panels of a matrix, and the inputs that are multiplied by them.
struct Product {
    const PackedMatrix& matrix;
    Share panels, inputs;
};

static Product with_all_inputs(const PackedMatrix& matrix, Share panels) {
    return {matrix, panels, {0, matrix.inputs}};
}
static Product with_all_outputs(const PackedMatrix& matrix, Share inputs) {
    return {matrix, {0, panels_of(matrix.outputs)}, inputs};
}

// The queries, keys or values (`index` 0, 1, 2) of the part's heads.
static Product product_of_heads(const RowPart& part, const PackedMatrix& qkv, int index) {
    const Share heads = part.heads();
    const std::int64_t D = part.model.head_dim, first = index * part.model.embed;
    return with_all_inputs(qkv, {(first + heads.begin * D) / kPanel, panels_of(first + heads.end * D)});
}

// The part's heads as inputs: whole panels, in which other parts' heads are 0.
static Share inputs_of_heads(const RowPart& part) {
    const Share heads = part.heads();
    const std::int64_t D = part.model.head_dim;
    return {heads.begin * D / kPanel * kPanel, round_up(heads.end * D, kPanel)};
}
static Share inputs_of_hidden(const RowPart& part) {
    const Share panels = part.hidden_panels();
    return {panels.begin * kPanel, panels.end * kPanel};
}

// Inputs of a padded row, in the format that a product reads.
static Operand operand_of(const RowPart& part, const float* x, const Product& product) {
    const std::int64_t width = round_up(product.matrix.inputs, kPanel);
    if (part.format() == ActivationFormat::floats) return {x, width, nullptr};
    const Share inputs{product.inputs.begin, round_up(product.inputs.end, kPanel)};
    *part.own.scale = convert_row(part.format(), x, inputs, width, part.own.operand);
    return {part.own.operand, width, part.own.scale};
}

// Multiplies inputs of a row; finish(output, result) takes the results of W outputs each.
template <class Finish>
static void multiply(const RowPart& part, const float* inputs, const Product& product, const Finish& finish) {
    const PackedMatrix& matrix = product.matrix;
    const Operand x = operand_of(part, inputs, product);
    for_formats(part.format(), part.model.format, [&](auto from) {
        for (std::int64_t panel = product.panels.begin; panel < product.panels.end; ++panel) {
            const Sums<1> sums = from.template multiply<1>(x, 0, matrix, {panel, product.inputs});
            for (int half = 0; half < 2; ++half) {
                const std::int64_t output = panel * kPanel + half * W<float>;
                finish(output, scaled(part.model, matrix, output, sums.of[0][half]));
            }
        }
    });
}

// Writes x W + b.
static void multiply_into(const RowPart& part, const float* x, const Product& product, float* to) {
    multiply(part, x, product,
             [&](std::int64_t output, Vec<float> y) { store(to + output, y + load(product.matrix.bias + output)); });
}

// Writes what the part adds to the residual stream.
static void multiply_to_add(const RowPart& part, const float* x, const Product& product, Sublayer sublayer) {
    float* const to = part.own.addends[static_cast<int>(sublayer)];
    multiply(part, x, product, [&](std::int64_t output, Vec<float> y) { store(to + output, y); });
}

// The residual stream after a sublayer, whose last matrix is given.
static void update_stream(const RowPart& part, const PackedMatrix& matrix, Sublayer sublayer) {
    const float* const residual = part.model.norm_first ? part.own.stream : part.own.normed;
    for (std::int64_t i = 0; i < part.model.embed; i += W<float>) {
        Vec<float> y = load(residual + i) + load(matrix.bias + i);
        for (int other = 0; other < part.member.parts; ++other) y += load(part.addend(sublayer, other) + i);
        store(part.own.stream + i, y);
    }
}

static void normalize_stream(const RowPart& part, const NormWeights* norm) {
    normalize_or_copy(part.own.stream, part.model.embed, norm, part.own.normed);
}

static void expect_writes_to(const float* from, std::int64_t count) {
    for (std::int64_t i = 0; i < count; i += 16) __builtin_prefetch(from + i, 1, 2);
}

// Prefetches the state of the part's heads: the weights read since the last step have evicted it from the caches, and
// other cores have prefetched some of it.
static void expect_state(const RowPart& part, std::int64_t layer) {
    const std::int64_t D = part.model.head_dim;
    const Share heads = part.heads();
    const std::int64_t first = part.place.sequence * part.model.heads + heads.begin, count = heads.end - heads.begin;
    expect_writes_to(part.call.z[layer] + first * D, count * D);
    expect_writes_to(part.call.s[layer] + first * D * D, count * D * D);
}

// The residual stream that a layer gets; after the last layer, the one that it leaves.
static void begin_layer(const RowPart& part, std::int64_t index) {
    if (index > 0) return update_stream(part, part.model.layers[index - 1].contract, Sublayer::feed_forward);
    embed_input(part, part.place, part.own.stream);
    std::memset(part.own.heads, 0, round_up(part.model.embed, kPanel) * sizeof(float));
}

// The norm of this stream; null: none.
static const NormWeights* norm_before(const RowPart& part, std::int64_t index) {
    if (part.model.norm_first) return index < part.model.num_layers ? &part.model.layers[index].norm1 : nullptr;
    return index > 0 ? &part.model.layers[index - 1].norm2 : nullptr;
}

static void attend(const RowPart& part, std::int64_t index) {
    const PartMemory& own = part.own;
    const DecoderLayer& layer = part.model.layers[index];
    expect_state(part, index);
    begin_layer(part, index);
    normalize_stream(part, norm_before(part, index));
    for (int i = 0; i < 3; ++i) multiply_into(part, own.normed, product_of_heads(part, layer.qkv, i), own.qkv);
    const Share heads = part.heads();
    for (std::int64_t head = heads.begin; head < heads.end; ++head) {
        attend_head(part, index, part.place.sequence, head, own.qkv, own.heads, own.mapped);
    }
    multiply_to_add(part, own.heads, with_all_outputs(layer.out, inputs_of_heads(part)), Sublayer::attention);
}

static void feed_forward(const RowPart& part, std::int64_t index) {
    const PartMemory& own = part.own;
    const DecoderLayer& layer = part.model.layers[index];
    update_stream(part, layer.out, Sublayer::attention);
    normalize_stream(part, part.model.norm_first ? &layer.norm2 : &layer.norm1);
    const Product expand = with_all_inputs(layer.expand, part.hidden_panels());
    multiply(part, own.normed, expand, [&](std::int64_t output, Vec<float> y) {
        store(own.hidden + output, activate(part.model.activation, y + load(layer.expand.bias + output)));
    });
    multiply_to_add(part, own.hidden, with_all_outputs(layer.contract, inputs_of_hidden(part)), Sublayer::feed_forward);
}

// The model's last norm, and the head's parameters or, in a model of vectors, the output.
static void finish_row(const RowPart& part) {
    const DecoderModel& model = part.model;
    float* const normed = part.own.normed;
    begin_layer(part, model.num_layers);
    normalize_stream(part, norm_before(part, model.num_layers));
    normalize(normed, model.embed, model.norm, normed);
    if (model.tokens.channels > 0) {
        const PackedMatrix& output = model.tokens.output;
        const Share panels = part.share_of(panels_of(output.outputs));
        multiply_into(part, normed, with_all_inputs(output, panels), part.parameters());
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
