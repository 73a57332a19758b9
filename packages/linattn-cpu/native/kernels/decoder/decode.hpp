// The whole model for all inputs of a call: embedding, layers, output, sampling, by one team of threads.
#pragma once

#include "kernels/decoder/heads.hpp"
#include "kernels/decoder/sampling.hpp"
#include "kernels/decoder/workspace.hpp"

LINATTN_BEGIN
namespace decoding {

// What is done to the result of a product x W + b.
enum class Epilogue { none, activation, residual };
struct Result {
    Buffer to;
    Epilogue epilogue = Epilogue::none;
    Buffer residual{};  // added row by row, for Epilogue::residual
};

// The range from begin to end, end excluded.
struct Share {
    std::int64_t begin, end;
};

// A thread's view of a call and of the rows that it works on: `count` rows, those of the block or those of them that
// are still needed.
struct Run {
    const DecoderModel& model;
    const DecoderCall& call;
    const Workspace& space;
    Member& member;
    const RowBlock& block;
    std::int64_t count;
    bool is_single_row;  // each part computes what is before a product for itself

    // Calls work() for parts of a phase until all of them are done, by this thread or by others.
    template <class Work>
    void phase(const Work& work) const {
        while (next_part(member) >= 0) work();
    }

    // The range of `count` items that belongs to a part, or to the part that this thread holds.
    Share share_of(std::int64_t count, int part) const {
        return {count * part / member.parts, count * (part + 1) / member.parts};
    }
    Share share_of(std::int64_t count) const { return share_of(count, member.part); }
    // The rows that the part writes.
    Share rows() const { return is_single_row ? Share{0, 1} : share_of(count); }
    // The buffer; with a single row, the part's own copy if there is one for each part.
    Buffer own(const Buffer& buffer) const {
        const bool is_own = is_single_row && buffer.for_each_part;
        return {is_own ? buffer.row(member.part) : buffer.data, buffer.width};
    }
};

// Bias, activation or residual for one row of a panel.
LINATTN_INLINE void finish(const Run& run, const PackedMatrix& matrix, std::int64_t row, std::int64_t column,
                           const float* sums, const Result& result) {
    for (int i = 0; i < kPanel; i += W<float>) {
        Vec<float> y = load(sums + i);
        if (run.model.format == WeightFormat::int8) y *= load(matrix.scales + column + i);
        y += load(matrix.bias + column + i);
        if (result.epilogue == Epilogue::activation) y = activate(run.model.activation, y);
        if (result.epilogue == Epilogue::residual) y += load(result.residual.row(row) + column + i);
        store(result.to.row(row) + column + i, y);
    }
}

// `count` <= R rows of one panel.
template <class From, int R>
static void multiply_tile(const Run& run, const Operand& x, const PackedMatrix& matrix, std::int64_t panel,
                          std::int64_t row, std::int64_t count, const Result& result) {
    if (count < R) {
        if constexpr (R > 1) multiply_tile<From, R - 1>(run, x, matrix, panel, row, count, result);
        return;
    }
    const Sums<R> sums = From::template multiply<R>(x, row, matrix, panel);
    float stored[R][kPanel];
    // Stored one by one: if the array were copied as a whole, the sums would not stay in registers.
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
        store(stored[r], sums.of[r][0]);
        store(stored[r] + W<float>, sums.of[r][1]);
    }
    for (int r = 0; r < R; ++r) finish(run, matrix, row + r, panel * kPanel, stored[r], result);
}

// The part's share of the tiles of a product. All rows of a panel come one after the other, while it is in the cache.
template <class From>
static void multiply_share(const Run& run, const Operand& x, std::int64_t rows, const PackedMatrix& matrix,
                           const Result& result) {
    const std::int64_t tiles = (rows + From::kRows - 1) / From::kRows;
    const Share share = run.share_of(panels_of(matrix.outputs) * tiles);
    for (std::int64_t item = share.begin; item < share.end; ++item) {
        const std::int64_t panel = item / tiles, tile = item % tiles;
        const std::int64_t row = rows * tile / tiles, end = rows * (tile + 1) / tiles;
        multiply_tile<From, From::kRows>(run, x, matrix, panel, row, end - row, result);
    }
}

#ifdef LINATTN_TILES

// The part's share of a product in tile registers. They read whole tiles, also past the last row.
template <class From>
static void multiply_in_tiles(const Run& run, const Operand& x, std::int64_t rows, const PackedMatrix& matrix,
                              const Result& result) {
    const TileRegisters registers;
    const std::int64_t blocks = (rows + From::kRows - 1) / From::kRows;
    const Share share = run.share_of(panels_of(matrix.outputs) * blocks);
    alignas(64) float sums[From::kRows][kPanel];
    for (std::int64_t item = share.begin; item < share.end; ++item) {
        const std::int64_t panel = item / blocks, row = item % blocks * From::kRows;
        const std::int64_t count = rows - row < From::kRows ? rows - row : From::kRows;
        From::multiply(x, row, count, matrix, panel, sums);
        for (std::int64_t r = 0; r < count; ++r) finish(run, matrix, row + r, panel * kPanel, sums[r], result);
    }
}

#endif  // LINATTN_TILES

static void multiply(const Run& run, const Operand& x, ActivationFormat format, std::int64_t rows,
                     const PackedMatrix& matrix, const Result& result) {
#ifdef LINATTN_TILES
    if (format == ActivationFormat::bf16) return multiply_in_tiles<TilesOfBf16>(run, x, rows, matrix, result);
    if (format == ActivationFormat::bytes && rows >= kAmxFewestRows) {
        return multiply_in_tiles<TilesOfBytes>(run, x, rows, matrix, result);
    }
#elif defined(LINATTN_BF16)
    if (format == ActivationFormat::bf16) return multiply_share<FromBf16>(run, x, rows, matrix, result);
#endif
#if defined(LINATTN_BYTES)
    if (format == ActivationFormat::bytes) return multiply_share<FromBytes>(run, x, rows, matrix, result);
#elif defined(LINATTN_PAIRS)
    if (format == ActivationFormat::shorts) return multiply_share<FromShorts>(run, x, rows, matrix, result);
#else
    if (run.model.format == WeightFormat::int8) {
        return multiply_share<FromFloats<WeightFormat::int8>>(run, x, rows, matrix, result);
    }
#endif
    (void)format;
    if (run.model.format == WeightFormat::bfloat16) {
        return multiply_share<FromFloats<WeightFormat::bfloat16>>(run, x, rows, matrix, result);
    }
    multiply_share<FromFloats<WeightFormat::float32>>(run, x, rows, matrix, result);
}

// The rows of x in the format that the product reads.
static Operand operand_of(const Run& run, ActivationFormat format, const Buffer& x) {
    if (format == ActivationFormat::floats) return {x.data, x.width, nullptr};
    const std::int64_t first = run.is_single_row ? run.member.part : 0;
    return {run.space.operand + first * x.width * kOperandBytes, x.width, run.space.scales + first};
}

// Converts the part's rows of x.
static void convert_rows(const Run& run, ActivationFormat format, const Buffer& x) {
    if (format == ActivationFormat::floats) return;
    const std::int64_t first = run.is_single_row ? run.member.part : 0;
    char* const to = run.space.operand + first * x.width * kOperandBytes;
    float* const scales = run.space.scales + first;
    const Share rows = run.rows();
    for (std::int64_t r = rows.begin; r < rows.end; ++r) {
        scales[r] = convert_row(format, x.row(r), x.width, to + r * x.width * kOperandBytes);
    }
}

// LayerNorm of the part's rows of the residual stream; without a norm (null), a copy of the rows.
static void normalize_rows(const Run& run, const NormWeights* norm) {
    const Buffer from = run.space.stream, to = run.own(run.space.normed);
    const Share rows = run.rows();
    for (std::int64_t r = rows.begin; r < rows.end; ++r) {
        if (norm == nullptr) {
            std::memcpy(to.row(r), from.row(r), from.width * sizeof(float));
        } else {
            normalize(from.row(r), run.model.embed, *norm, to.row(r));
        }
    }
}

// The result of x W + b for all rows.
static void product(const Run& run, const Buffer& x, const PackedMatrix& matrix, const Result& result) {
    const ActivationFormat format = activation_format(run.model.format, run.count);
    const auto compute = [&] {
        const Operand operand = operand_of(run, format, run.own(x));
        multiply(run, operand, format, run.count, matrix, {result.to, result.epilogue, run.own(result.residual)});
    };
    if (run.is_single_row) {
        return run.phase([&] {
            convert_rows(run, format, run.own(x));
            compute();
        });
    }
    if (format != ActivationFormat::floats) run.phase([&] { convert_rows(run, format, x); });
    run.phase(compute);
}

// The same for x = norm(stream). With a single row, each part computes x for itself, which takes less time than
// another phase.
static void product_of_norm(const Run& run, const NormWeights* norm, const PackedMatrix& matrix, const Result& result) {
    const Buffer& x = run.space.normed;
    const ActivationFormat format = activation_format(run.model.format, run.count);
    const auto prepare = [&] {
        normalize_rows(run, norm);
        convert_rows(run, format, run.own(x));
    };
    const auto compute = [&] { multiply(run, operand_of(run, format, run.own(x)), format, run.count, matrix, result); };
    if (!run.is_single_row) run.phase(prepare);
    run.phase([&] {
        if (run.is_single_row) prepare();
        compute();
    });
}

static void add(const float* from, std::int64_t count, float* to) {
    for (std::int64_t i = 0; i < count; ++i) to[i] += from[i];
}

// One input of the first layer: embeddings or the start vector, plus the vector of the position.
static void embed_input(const Run& run, std::int64_t row, float* to) {
    const TokenWeights& tokens = run.model.tokens;
    const DecoderCall& call = run.call;
    const auto [b, i] = run.block.places[row];
    const std::int64_t embed = run.model.embed;
    std::memset(to, 0, run.space.stream.width * sizeof(float));
    if (tokens.channels == 0) {
        add(call.vectors + (b * call.inputs + i) * embed, embed, to);
        return;
    }
    if (call.begins && i == 0) {
        add(tokens.start, embed, to);
    } else {
        const std::int64_t taken = call.inputs - call.begins;
        const std::int64_t* token = call.tokens + (b * taken + i - call.begins) * tokens.channels;
        for (std::int64_t c = 0; c < tokens.channels; ++c) {
            add(tokens.embeddings[c] + token[c] * embed, embed, to);
        }
    }
    const std::int64_t first = call.positions == nullptr ? call.position : call.positions[b];
    add(tokens.positions + (first + i) * embed, embed, to);
}

static void embed_inputs(const Run& run) {
    run.phase([&] {
        const Share rows = run.share_of(run.count);
        for (std::int64_t r = rows.begin; r < rows.end; ++r) embed_input(run, r, run.space.stream.row(r));
    });
}

// One head of one of the block's sequences, over its inputs in order.
static void attend_head(const Run& run, std::int64_t layer, std::int64_t index, std::int64_t head) {
    const DecoderModel& model = run.model;
    const std::int64_t D = model.head_dim, H = model.heads, b = run.block.sequence(index);
    float* query = run.space.mapped.row(run.member.part);
    float* key = query + round_up(D, W<float>);
    float* s = run.call.s[layer] + (b * H + head) * D * D;
    float* z = run.call.z[layer] + (b * H + head) * D;
    for (std::int64_t row = run.block.starts[index]; row < run.block.starts[index + 1]; ++row) {
        float* out = run.space.heads.row(row) + head * D;
        const float* qkv = run.space.qkv.row(row) + head * D;
        map_vector(model.map, qkv, D, query);
        map_vector(model.map, qkv + model.embed, D, key);
        step_head({query, key, qkv + 2 * model.embed, s, z, out, D}, model.eps);
    }
}

// Prefetches the state of the heads of a single row that this thread will probably update: the weights read since the
// last step have evicted it from the caches.
static void prefetch_state(const Run& run, std::int64_t layer) {
    const std::int64_t D = run.model.head_dim;
    const Share heads = run.share_of(run.model.heads, run.member.rank);
    const float* const s = run.call.s[layer] + run.block.sequence(0) * run.model.heads * D * D;
    for (const float* at = s + heads.begin * D * D; at < s + heads.end * D * D; at += 16) {
        __builtin_prefetch(at, 1, 2);
    }
}

static void attend(const Run& run, std::int64_t layer) {
    const std::int64_t H = run.model.heads;
    run.phase([&] {
        const Share items = run.share_of(run.block.sequences * H);
        for (std::int64_t item = items.begin; item < items.end; ++item) {
            attend_head(run, layer, item / H, item % H);
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
    run.is_single_row = false;
}

// `norm` is applied to the stream before this layer; null: none. The last layer leaves only the rows that are needed.
static void run_layer(Run& run, std::int64_t index, const NormWeights* norm) {
    const DecoderModel& model = run.model;
    const DecoderLayer& layer = model.layers[index];
    const Workspace& space = run.space;
    const Buffer residual = model.norm_first ? space.stream : space.normed;
    const NormWeights* const between = model.norm_first ? &layer.norm2 : &layer.norm1;
    if (run.is_single_row) prefetch_state(run, index);
    product_of_norm(run, norm, layer.qkv, {space.qkv});
    attend(run, index);
    if (index + 1 == model.num_layers) keep_ends(run, residual);
    if (run.count == 0) return;
    product(run, space.heads, layer.out, {space.stream, Epilogue::residual, residual});
    product_of_norm(run, between, layer.expand, {space.hidden, Epilogue::activation});
    product(run, space.hidden, layer.contract, {space.stream, Epilogue::residual, residual});
}

// The last norm of one row. With vectors, the result goes to the caller's memory; with tokens, the rows are those of
// the sequences that end, and follow the `ended` ones before.
static void write_output(const Run& run, const Buffer& from, std::int64_t row, std::int64_t ended) {
    const DecoderModel& model = run.model;
    if (model.tokens.channels == 0) {
        const auto [b, i] = run.block.places[row];
        float* y = run.call.outputs + (b * run.call.inputs + i) * model.embed;
        float* normed = run.own(run.space.normed).row(row);
        normalize(from.row(row), model.embed, model.norm, normed);
        std::memcpy(y, normed, model.embed * sizeof(float));
    } else {
        normalize(from.row(row), model.embed, model.norm, run.space.final_rows.row(ended + row));
    }
}

// `norm` is applied to the stream between the last layer and the model's last norm; null: none.
static void write_outputs(const Run& run, const NormWeights* norm, std::int64_t ended) {
    run.phase([&] {
        if (run.is_single_row && run.member.part > 0) return;
        if (norm != nullptr) normalize_rows(run, norm);
        const Buffer from = norm == nullptr ? run.space.stream : run.own(run.space.normed);
        const Share rows = run.rows();
        for (std::int64_t r = rows.begin; r < rows.end; ++r) write_output(run, from, r, ended);
    });
}

// The head's parameters for the sequences that have ended, and the tokens drawn from them.
static void predict(Run run, const Ended& ended) {
    const DecoderCall& call = run.call;
    const PackedMatrix& output = run.model.tokens.output;
    const Buffer parameters = run.space.parameters;
    run.count = ended.count;
    run.is_single_row = ended.count == 1;
    product(run, run.space.final_rows, output, {parameters});
    run.phase([&] {
        const Share rows = run.share_of(run.count);
        for (std::int64_t r = rows.begin; r < rows.end; ++r) {
            const std::int64_t b = ended.sequences[r];
            float* const to = call.outputs + b * output.outputs;
            std::memcpy(to, parameters.row(r), output.outputs * sizeof(float));
            if (call.drawn != nullptr) {
                draw_token(run.model.tokens, call, b, parameters.row(r), run.space.weights.row(run.member.part));
            }
        }
    });
}

static void run_block(Run run, std::int64_t ended) {
    const DecoderModel& model = run.model;
    // In models with norms after the residual sums: the last norm of the layer before.
    const NormWeights* after = nullptr;
    embed_inputs(run);
    for (std::int64_t i = 0; i < model.num_layers; ++i) {
        run_layer(run, i, model.norm_first ? &model.layers[i].norm1 : after);
        if (!model.norm_first) after = &model.layers[i].norm2;
    }
    if (run.count > 0) write_outputs(run, after, ended);
}

static void clear_padding(const Buffer& buffer, std::int64_t used, Share rows) {
    for (std::int64_t r = rows.begin; r < rows.end; ++r) {
        std::memset(buffer.row(r) + used, 0, (buffer.width - used) * sizeof(float));
    }
}

struct Team {
    const DecoderModel& model;
    const DecoderCall& call;
    const Workspace& space;
};

static void work(void* context, Member& member) {
    const Team& team = *static_cast<const Team*>(context);
    RowBlock block;
    Ended ended;
    Blocks blocks(team.call);
    const auto run_of = [&](std::int64_t rows) {
        return Run{team.model, team.call, team.space, member, block, rows, rows == 1};
    };
    const Run all = run_of(rows_of_blocks(team.call));
    all.phase([&] { clear_padding(team.space.heads, team.model.embed, all.share_of(all.count)); });
    while (blocks.next(block)) {
        const std::int64_t ends = team.model.tokens.channels == 0 ? 0 : block.ends(team.call);
        if (ended.count + ends > all.count) {
            predict(all, ended);
            ended.count = 0;
        }
        run_block(run_of(block.rows), ended.count);
        for (std::int64_t k = 0; k < ends; ++k) ended.sequences[ended.count++] = block.sequence(k);
    }
    if (ended.count > 0) predict(all, ended);
}

// The bytes of memory that `decode` needs.
static std::int64_t workspace_bytes(const DecoderModel& model, const DecoderCall& call) {
    Arena size(nullptr);
    lay_out(size, model, call);
    return size.bytes();
}

// Runs the call with its workspace in `memory`, which is aligned to cache lines.
static void decode(const DecoderModel& model, const DecoderCall& call, void* memory) {
    Arena arena(memory);
    const Workspace space = lay_out(arena, model, call);
    Team team{model, call, space};
    run_phases(call.threads, work, &team);
}

}  // namespace decoding
LINATTN_END
