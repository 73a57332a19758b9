#include "packed_decoder.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <stdexcept>
#include <string>

#include "cores.hpp"
#include "instruction_sets.hpp"

namespace linattn {

namespace {

std::string out_of_range(const char* what, std::int64_t count, std::int64_t low, std::int64_t high) {
    return std::string(what) + ": expected numbers in 0.." + std::to_string(count - 1) + ", got " +
           std::to_string(low) + " to " + std::to_string(high) + ".";
}

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

}  // namespace

// Places the parts of a model one after the other: first without memory, to count bytes, then to fill it.
class PackedDecoder::Packer {
public:
    Packer(const Kernels& kernels, WeightFormat format, int threads, void* memory)
        : kernels_(kernels), format_(format), threads_(threads), arena_(memory) {}

    std::int64_t bytes() const { return arena_.bytes(); }

    PackedMatrix matrix(const AffineSource& source) {
        const std::int64_t padded = round_up(source.outputs, kernels_.panel_width);
        PackedMatrix matrix{source.inputs, source.outputs, nullptr, nullptr, nullptr, nullptr};
        matrix.panels = arena_.take<char>(kernels_.packed_bytes(format_, source.inputs, source.outputs));
        matrix.bias = vector(source.bias, source.outputs);
        if (format_ == WeightFormat::int8) {
            matrix.scales = arena_.take<float>(padded);
            matrix.sums = arena_.take<std::int32_t>(kernels_.packed_sums(source.inputs, source.outputs));
        }
        if (arena_.counts()) return matrix;
        MatrixSource weight = source.weight;
        const std::vector<float> loaded = source.load ? source.load() : std::vector<float>();
        if (source.load) weight.data = loaded.data();
        kernels_.pack_matrix(weight, format_, matrix, threads_);
        return matrix;
    }

    NormWeights norm(const NormWeights& source, std::int64_t embed) {
        return {vector(source.weight, embed), vector(source.bias, embed), source.eps, source.centered};
    }

    // Padded to whole panels by 0; all 0 if `from` is null.
    float* vector(const float* from, std::int64_t count) {
        const std::int64_t padded = round_up(count, kernels_.panel_width);
        const std::int64_t given = from == nullptr ? 0 : count;
        float* to = copy(from, given, padded);
        if (!arena_.counts()) std::fill(to + given, to + padded, 0.0f);
        return to;
    }

    double* doubles(const std::vector<double>& from) {
        double* to = arena_.take<double>(static_cast<std::int64_t>(from.size()));
        if (!arena_.counts()) std::copy(from.begin(), from.end(), to);
        return to;
    }

    // Made of each number, in float64.
    template <class Make>
    float* map(const float* from, std::int64_t count, const Make& make) {
        float* to = copy(from, count, count);
        const auto rounded = [&](float x) { return static_cast<float>(make(x)); };
        if (!arena_.counts()) std::transform(to, to + count, to, rounded);
        return to;
    }

    float* copy(const float* from, std::int64_t count, std::int64_t room) {
        float* to = arena_.take<float>(room);
        if (!arena_.counts() && count > 0) std::memcpy(to, from, static_cast<std::size_t>(count) * 4);
        return to;
    }

private:
    const Kernels& kernels_;
    WeightFormat format_;
    int threads_;
    Arena arena_;
};

PackedDecoder::PackedDecoder(const ModelSource& source, int threads)
    : kernels_(live_kernels()), layers_(source.layers.size()) {
    static_cast<DecoderShape&>(model_) = source;
    model_.num_layers = static_cast<std::int64_t>(layers_.size());
    model_.embed = source.heads * source.head_dim;
    model_.layers = layers_.data();
    Packer counter(kernels_, source.format, threads, nullptr);
    place(counter, source);
    bytes_ = counter.bytes();
    memory_.emplace(bytes_);
    expect_writes(memory_->get(), bytes_, threads);  // each step reads all of it: huge pages need fewer walks
    Packer packer(kernels_, source.format, threads, memory_->get());
    place(packer, source);
}

void PackedDecoder::place(Packer& packer, const ModelSource& source) {
    const std::int64_t embed = model_.embed;
    for (std::size_t i = 0; i < layers_.size(); ++i) {
        const LayerSource& from = source.layers[i];
        DecoderLayer& to = layers_[i];
        to.norm1 = packer.norm(from.norm1, embed);
        to.qkv = packer.matrix(from.qkv);
        to.out = packer.matrix(from.out);
        to.norm2 = packer.norm(from.norm2, embed);
        to.expand = packer.matrix(from.expand);
        if (from.gate) to.gate = packer.matrix(*from.gate);
        if (from.decay_logits != nullptr) {
            const bool gated = from.decay_weight != nullptr;
            to.decay = packer.map(from.decay_logits, source.kv_heads, [&](double x) { return gated ? x : sigmoid(x); });
        }
        const std::int64_t entries = source.kv_heads * embed;
        if (from.decay_weight != nullptr) to.decay_weight = packer.copy(from.decay_weight, entries, entries);
        if (from.log_gamma != nullptr) {
            const double constant = from.query_map == nullptr ? static_cast<double>(source.head_dim) : 4;
            const double subtracted = std::log(constant);  // of the weight of linear attention beside a window
            to.log_gamma = packer.map(from.log_gamma, source.heads, [&](double x) { return x - subtracted; });
        }
        if (from.query_map != nullptr) {
            const std::int64_t numbers = source.head_dim * source.features / 2;
            to.query_map = packer.copy(from.query_map, source.heads * numbers, source.heads * numbers);
            to.key_map = packer.copy(from.key_map, source.kv_heads * numbers, source.kv_heads * numbers);
        }
        to.contract = packer.matrix(from.contract);
    }
    model_.norm = packer.norm(source.norm, embed);
    if (!source.frequencies.empty()) model_.frequencies = packer.doubles(source.frequencies);
    if (!source.tokens) return;
    const TokenSource& tokens = *source.tokens;
    TokenWeights& to = model_.tokens;
    static_cast<TokenShape&>(to) = tokens;
    to.channels = static_cast<std::int64_t>(tokens.embeddings.size());
    to.output = packer.matrix(tokens.output);
    to.start = packer.vector(tokens.start, embed);
    const std::int64_t entries = to.levels * embed, places = to.max_length * embed;
    to.positions = tokens.positions == nullptr ? nullptr : packer.copy(tokens.positions, places, places);
    for (std::size_t c = 0; c < tokens.embeddings.size(); ++c) {
        to.embeddings[c] = packer.copy(tokens.embeddings[c], entries, entries);
    }
}

void PackedDecoder::run(DecoderCall call) const {
    call.threads = team_size(call.threads);
    if (model_.tokens.channels > 0) check(call);
    if (call.batch == 0 || call.inputs == 0) return;
    std::vector<std::int64_t> positions;  // of the current step
    if (call.steps > 1 && call.positions != nullptr) {
        positions.assign(call.positions, call.positions + call.batch);
        call.positions = positions.data();
    }
    const Scratch workspace(kernels_.workspace_bytes(model_, call));
    // Nothing from here on can fail, so all steps are made or none.
    for (std::int64_t step = 0; step < call.steps; ++step) {
        if (step > 0) take_drawn(call, positions);
        kernels_.decode(model_, call, workspace.get());
    }
}

// Moves a call to its next step. The tokens that were drawn are in range, whatever the parameters are.
void PackedDecoder::take_drawn(DecoderCall& call, std::vector<std::int64_t>& positions) const {
    const TokenWeights& tokens = model_.tokens;
    const std::int64_t values = call.batch * tokens.channels;
    call.tokens = call.drawn;
    call.drawn += values;
    call.outputs += call.batch * tokens.output.outputs;
    call.quantiles += 4 * call.batch;
    ++call.position;
    for (std::int64_t& position : positions) ++position;
}

void PackedDecoder::check(const DecoderCall& call) const {
    const TokenWeights& tokens = model_.tokens;
    if (call.steps > 1 && (call.inputs != 1 || call.begins || call.drawn == nullptr)) {
        throw std::invalid_argument("steps: expected one input for each row and a draw with several steps.");
    }
    const std::int64_t count = call.batch * (call.inputs - call.begins) * tokens.channels;
    if (count > 0) {
        const auto range = std::minmax_element(call.tokens, call.tokens + count);
        if (*range.first < 0 || *range.second >= tokens.levels) {
            throw std::invalid_argument(out_of_range("tokens", tokens.levels, *range.first, *range.second));
        }
    }
    std::int64_t low = call.position, high = call.position;
    if (call.positions != nullptr && call.batch > 0) {
        const auto range = std::minmax_element(call.positions, call.positions + call.batch);
        low = *range.first, high = *range.second;
    }
    const std::int64_t last = high + call.inputs + call.steps - 2;
    const std::int64_t room =
        tokens.positions == nullptr ? std::numeric_limits<std::int64_t>::max() : tokens.max_length;
    if (low < 0 || last >= room) {
        throw std::invalid_argument(out_of_range("positions", room, low, last));
    }
}

}  // namespace linattn
