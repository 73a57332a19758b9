// The whole model for the rows of a batch: all threads share each product, by its outputs and its rows.
#pragma once

#include <initializer_list>

#include "kernels/decoder/layers.hpp"

LINATTN_BEGIN
namespace decoding {

// The sequences that have ended, and whose parameters are not computed yet: no more than a block has rows.
struct Ended {
    std::int64_t count = 0;
    std::int64_t sequences[kBlockRows];
};

// Rows of numbers, each padded to whole panels.
struct Buffer {
    float* data;
    std::int64_t width;

    float* row(std::int64_t r) const { return data + r * width; }
};

static Buffer take_rows(Arena& arena, std::int64_t count, std::int64_t numbers) {
    const std::int64_t width = round_up(numbers, kPanel);
    return {arena.take<float>(count * width), width};
}

// The memory of a call.
struct Workspace {
    Buffer stream;  // the residual stream
    Buffer normed;  // the input of a layer's products
    Buffer qkv, heads, hidden;
    Buffer rotations;   // of rotary positions
    Buffer final_rows;  // of each sequence after its last input, normalized
    Buffer parameters;  // of the head
    char* operand;      // rows converted for a product, and their scales
    float* scales;
    Buffer mapped, weights;  // of each part, for `attend_head` and `write_parameters`
};

static Workspace lay_out(Arena& arena, const DecoderModel& model, const DecoderCall& call) {
    const std::int64_t rows = rows_of_blocks(call), embed = model.embed, hidden = model.hidden;
    const std::int64_t widest = round_up(embed > hidden ? embed : hidden, kPanel);
    const std::int64_t most = call.batch < rows ? call.batch : rows;
    const std::int64_t sequences = call.tokens != nullptr || call.begins ? most : 0;
    Workspace space;
    space.stream = take_rows(arena, rows, embed);
    space.normed = take_rows(arena, rows, embed);
    space.qkv = take_rows(arena, rows, qkv_numbers(model));
    space.heads = take_rows(arena, rows, embed);
    space.hidden = take_rows(arena, rows, hidden);
    space.rotations = take_rows(arena, rows, rotation_numbers(model));
    space.final_rows = take_rows(arena, sequences, embed);
    space.parameters = take_rows(arena, sequences, model.tokens.output.outputs);
    space.operand = arena.take<char>(operand_rows(rows) * widest * kOperandBytes + kOperandSlack);
    space.scales = arena.take<float>(rows);
    space.mapped = take_rows(arena, call.threads, HeadMemory::numbers(model));
    space.weights = take_rows(arena, call.threads, draw_numbers(model.tokens, call));
    return space;
}

// What is done to the result of a product x W + b.
enum class Epilogue { none, activation, gated, residual };
struct Result {
    Buffer to;
    Epilogue epilogue = Epilogue::none;
    Buffer residual{};  // added row by row, for Epilogue::residual
};

// A thread's view of the rows that it works on: `count` rows, those of the block or those of them that are still needed.
struct Run : Thread {
    const Workspace& space;
    const RowBlock& block;
    std::int64_t count;

    // The rows that the part writes.
    Range rows() const { return share_of(count); }
};

// Bias, activation or residual for one row of a panel.
LINATTN_INLINE void finish(const Run& run, const PackedMatrix& matrix, std::int64_t row, std::int64_t column,
                           const float* sums, const Result& result) {
    for (int i = 0; i < kPanel; i += W<float>) {
        Vec<float> y = scaled(run.model, matrix, column + i, load(sums + i)) + load(matrix.bias + column + i);
        if (result.epilogue == Epilogue::activation) y = activate(run.model.activation, y);
        if (result.epilogue == Epilogue::gated) y *= load(result.to.row(row) + column + i);
        if (result.epilogue == Epilogue::residual) y += load(result.residual.row(row) + column + i);
        store(result.to.row(row) + column + i, y);
    }
}

// `count` <= R rows of some panels.
template <class From, int R>
static void multiply_tile(const Run& run, const Operand& x, const PackedMatrix& matrix, Range panels, std::int64_t row,
                          std::int64_t count, const Result& result) {
    if (count < R) {
        if constexpr (R > 1) multiply_tile<From, R - 1>(run, x, matrix, panels, row, count, result);
        return;
    }
    const auto finish_panels = [&](std::int64_t panel, const auto& sums) {
        constexpr int kCount = sizeof(sums.of[0]) / kVectorBytes;
        float stored[R][kCount * W<float>];
        // Stored one by one: if the array were copied as a whole, the sums would not stay in registers.
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
            for (int n = 0; n < kCount; ++n) store(stored[r] + n * W<float>, sums.of[r][n]);
        }
        for (int r = 0; r < R; ++r) {
            for (int i = 0; i < kCount * W<float>; i += kPanel) {
                finish(run, matrix, row + r, panel * kPanel + i, stored[r] + i, result);
            }
        }
    };
    for_each_product<From, R>(x, row, matrix, panels, {0, matrix.inputs}, finish_panels);
}

// The part's share of the tiles of a product. All rows of a panel come one after the other, while it is in the cache.
template <class From>
static void multiply_share(const Run& run, const Operand& x, const PackedMatrix& matrix, const Result& result) {
    const std::int64_t rows = run.count, tiles = (rows + From::kRows - 1) / From::kRows;
    const Range share = run.share_of(panels_of(matrix.outputs) * tiles);
    if (tiles == 1) return multiply_tile<From, From::kRows>(run, x, matrix, share, 0, rows, result);
    for (std::int64_t item = share.low; item < share.high; ++item) {
        const std::int64_t panel = item / tiles, tile = item % tiles;
        const std::int64_t row = rows * tile / tiles, end = rows * (tile + 1) / tiles;
        multiply_tile<From, From::kRows>(run, x, matrix, {panel, panel + 1}, row, end - row, result);
    }
}

#ifdef LINATTN_TILES

// The part's share of a product in tile registers. They read whole tiles, also past the last row.
template <class From>
static void multiply_in_tiles(const Run& run, const Operand& x, const PackedMatrix& matrix, const Result& result) {
    const TileRegisters registers;
    const std::int64_t rows = run.count, blocks = (rows + From::kRows - 1) / From::kRows;
    const Range share = run.share_of(panels_of(matrix.outputs) * blocks);
    alignas(64) float sums[From::kRows][kPanel];
    for (std::int64_t item = share.low; item < share.high; ++item) {
        const std::int64_t panel = item / blocks, row = item % blocks * From::kRows;
        const std::int64_t count = rows - row < From::kRows ? rows - row : From::kRows;
        From::multiply(x, row, count, matrix, panel, sums);
        for (std::int64_t r = 0; r < count; ++r) finish(run, matrix, row + r, panel * kPanel, sums[r], result);
    }
}

#endif  // LINATTN_TILES

static void multiply(const Run& run, const Operand& x, ActivationFormat format, const PackedMatrix& matrix,
                     const Result& result) {
#ifdef LINATTN_TILES
    if (format == ActivationFormat::bf16) return multiply_in_tiles<TilesOfBf16>(run, x, matrix, result);
    if (format == ActivationFormat::bytes && run.count >= kAmxFewestRows) {
        return multiply_in_tiles<TilesOfBytes>(run, x, matrix, result);
    }
#endif
    dispatch_formats(format, run.model.format,
                     [&](auto from) { multiply_share<decltype(from)>(run, x, matrix, result); });
}

// The rows of x in the format that the product reads.
static Operand operand_of(const Run& run, ActivationFormat format, const Buffer& x) {
    if (format == ActivationFormat::floats) return {x.data, x.width, nullptr};
    return {run.space.operand, x.width, run.space.scales};
}

// Converts the part's rows of x.
static void convert_rows(const Run& run, ActivationFormat format, const Buffer& x) {
    if (format == ActivationFormat::floats) return;
    const Range rows = run.rows();
    for (std::int64_t r = rows.low; r < rows.high; ++r) {
        char* const to = run.space.operand + r * x.width * kOperandBytes;
        run.space.scales[r] = convert_row(format, x.row(r), {0, x.width}, x.width, to);
    }
}

// LayerNorm of the part's rows of the residual stream; without a norm (null), a copy of the rows.
static void normalize_rows(const Run& run, const NormWeights* norm) {
    const Buffer &from = run.space.stream, &to = run.space.normed;
    const Range rows = run.rows();
    for (std::int64_t r = rows.low; r < rows.high; ++r) {
        normalize_or_copy(from.row(r), run.model.embed, norm, to.row(r));
    }
}

static void multiply_rows(const Run& run, const Buffer& x, ActivationFormat format, const PackedMatrix& matrix,
                          const Result& result) {
    run.phase([&] { multiply(run, operand_of(run, format, x), format, matrix, result); });
}

// The result of x W + b for all rows.
static void product(const Run& run, const Buffer& x, const PackedMatrix& matrix, const Result& result) {
    const ActivationFormat format = activation_format(run.model.format, run.count);
    if (format != ActivationFormat::floats) run.phase([&] { convert_rows(run, format, x); });
    multiply_rows(run, x, format, matrix, result);
}

// The same for x = norm(stream).
static void product_of_norm(const Run& run, const NormWeights* norm, const PackedMatrix& matrix, const Result& result) {
    const ActivationFormat format = activation_format(run.model.format, run.count);
    run.phase([&] {
        normalize_rows(run, norm);
        convert_rows(run, format, run.space.normed);
    });
    multiply_rows(run, run.space.normed, format, matrix, result);
}

static void embed_inputs(const Run& run) {
    run.phase([&] {
        const Range rows = run.rows();
        for (std::int64_t r = rows.low; r < rows.high; ++r) {
            embed_input(run, run.block.places[r], run.space.stream.row(r));
            write_rotation(run, run.block.places[r], run.space.rotations.row(r));
        }
    });
}

// One key/value head of one of the block's sequences, over its inputs in order.
static void attend_inputs(const Run& run, std::int64_t layer, std::int64_t index, std::int64_t head) {
    const std::int64_t b = run.block.sequence(index);
    float* const mapped = run.space.mapped.row(run.member.part);
    for (std::int64_t row = run.block.starts[index]; row < run.block.starts[index + 1]; ++row) {
        const HeadInput input{b,
                              position_of(run.call, run.block.places[row]),
                              run.space.normed.row(row),
                              run.space.qkv.row(row),
                              run.space.rotations.row(row),
                              run.space.heads.row(row)};
        attend_head(run, layer, input, head, mapped);
    }
}

static void attend(const Run& run, std::int64_t layer) {
    const std::int64_t H = run.model.kv_heads;
    run.phase([&] {
        const Range items = run.share_of(run.block.sequences * H);
        for (std::int64_t item = items.low; item < items.high; ++item) {
            attend_inputs(run, layer, item / H, item % H);
        }
    });
}

// After the attention of the last layer, the last input of each sequence is all that is needed of a model of tokens:
// moves these rows to the front, and leaves the others out. One part moves all, since a row may move to where another
// one moves from.
static void keep_ends(Run& run, const Buffer& residual) {
    const std::int64_t ends = run.block.ends(run.call);
    if (run.model.tokens.channels == 0 || ends == run.count) return;
    if (ends > 0) {
        run.phase([&] {
            if (run.member.part > 0) return;
            for (std::int64_t k = 0; k < ends; ++k) {
                for (const Buffer& buffer : {run.space.heads, residual}) {
                    std::memmove(buffer.row(k), buffer.row(run.block.last_row(k)), buffer.width * sizeof(float));
                }
            }
        });
    }
    run.count = ends;
}

// The last layer leaves only the rows that are needed.
static void run_layer(Run& run, std::int64_t index) {
    const DecoderModel& model = run.model;
    const DecoderLayer& layer = model.layers[index];
    const Workspace& space = run.space;
    const Buffer residual = model.norm_first ? space.stream : space.normed;
    product_of_norm(run, norm_before(model, index), layer.qkv, {space.qkv});
    attend(run, index);
    if (index + 1 == model.num_layers) keep_ends(run, residual);
    if (run.count == 0) return;
    product(run, space.heads, layer.out, {space.stream, Epilogue::residual, residual});
    product_of_norm(run, norm_between(model, layer), model.gated ? layer.gate : layer.expand,
                    {space.hidden, Epilogue::activation});
    if (model.gated) {
        const ActivationFormat format = activation_format(model.format, run.count);
        multiply_rows(run, space.normed, format, layer.expand, {space.hidden, Epilogue::gated});
    }
    product(run, space.hidden, layer.contract, {space.stream, Epilogue::residual, residual});
}

// The last norm of one row. With vectors, the result goes to the caller's memory; with tokens, the rows are those of
// the sequences that end, and follow the `ended` ones before.
static void write_output(const Run& run, const Buffer& from, std::int64_t row, std::int64_t ended) {
    const DecoderModel& model = run.model;
    if (model.tokens.channels == 0) {
        const auto [b, i] = run.block.places[row];
        float* y = run.call.outputs + (b * run.call.inputs + i) * model.embed;
        // The norm writes whole vectors, so not to the caller's memory.
        float* const normed = run.space.normed.row(row);
        normalize(from.row(row), model.embed, model.norm, normed);
        std::memcpy(y, normed, model.embed * sizeof(float));
    } else {
        normalize(from.row(row), model.embed, model.norm, run.space.final_rows.row(ended + row));
    }
}

static void write_outputs(const Run& run, std::int64_t ended) {
    const NormWeights* const norm = norm_before(run.model, run.model.num_layers);
    run.phase([&] {
        if (norm != nullptr) normalize_rows(run, norm);
        const Buffer& from = norm == nullptr ? run.space.stream : run.space.normed;
        const Range rows = run.rows();
        for (std::int64_t r = rows.low; r < rows.high; ++r) write_output(run, from, r, ended);
    });
}

// The head's parameters for the sequences that have ended, and the tokens drawn from them.
static void predict(Run run, const Ended& ended) {
    const Buffer& parameters = run.space.parameters;
    run.count = ended.count;
    product(run, run.space.final_rows, run.model.tokens.output, {parameters});
    run.phase([&] {
        const Range rows = run.rows();
        for (std::int64_t r = rows.low; r < rows.high; ++r) {
            write_parameters(run, ended.sequences[r], parameters.row(r), run.space.weights.row(run.member.part));
        }
    });
}

static void run_block(Run run, std::int64_t ended) {
    embed_inputs(run);
    for (std::int64_t i = 0; i < run.model.num_layers; ++i) run_layer(run, i);
    if (run.count > 0) write_outputs(run, ended);
}

static void clear_padding(const Buffer& buffer, std::int64_t used, Range rows) {
    for (std::int64_t r = rows.low; r < rows.high; ++r) {
        std::memset(buffer.row(r) + used, 0, (buffer.width - used) * sizeof(float));
    }
}

static void run_many_rows(const Thread& thread, void* memory) {
    Arena arena(memory);
    const Workspace space = lay_out(arena, thread.model, thread.call);
    RowBlock block;
    Ended ended;
    Blocks blocks(thread.call);
    const Run all{thread, space, block, rows_of_blocks(thread.call)};
    all.phase([&] {
        clear_padding(space.heads, thread.model.embed, all.rows());
        clear_padding(space.qkv, thread.model.embed + 2 * key_numbers(thread.model), all.rows());
    });
    while (blocks.next(block)) {
        const std::int64_t ends = thread.model.tokens.channels == 0 ? 0 : block.ends(thread.call);
        if (ended.count + ends > all.count) {
            predict(all, ended);
            ended.count = 0;
        }
        run_block({thread, space, block, block.rows}, ended.count);
        for (std::int64_t k = 0; k < ends; ++k) ended.sequences[ended.count++] = block.sequence(k);
    }
    if (ended.count > 0) predict(all, ended);
}

}  // namespace decoding
LINATTN_END
