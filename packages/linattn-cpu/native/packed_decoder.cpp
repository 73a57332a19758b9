#include "packed_decoder.hpp"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>
#include <stdexcept>
#include <string>

#include "cores.hpp"
#include "instruction_sets.hpp"

namespace linattn {

namespace {

constexpr std::int64_t kCacheLine = 64;

std::int64_t round_up(std::int64_t n, std::int64_t to) { return (n + to - 1) / to * to; }

void* allocate(std::int64_t bytes) {
    const auto whole = static_cast<std::size_t>(round_up(std::max<std::int64_t>(bytes, 1), kCacheLine));
    void* memory = std::aligned_alloc(static_cast<std::size_t>(kCacheLine), whole);
    if (memory == nullptr) throw std::bad_alloc();
    return memory;
}

std::string outside(const char* what, std::int64_t count, std::int64_t low, std::int64_t high) {
    return std::string(what) + " must lie in 0.." + std::to_string(count - 1) + " and reach from " +
           std::to_string(low) + " to " + std::to_string(high) + ".";
}

}  // namespace

void PackedDecoder::Release::operator()(void* memory) const { std::free(memory); }

// Places one thing after the other. Without memory it only counts bytes; with it, it also fills.
class PackedDecoder::Shelf {
public:
    Shelf(const Kernels& kernels, WeightFormat format, int threads, char* memory)
        : kernels_(kernels), format_(format), threads_(threads), memory_(memory) {}

    std::int64_t bytes() const { return bytes_; }

    PackedMatrix matrix(const DenseSource& source) {
        const std::int64_t padded = round_up(source.outputs, kernels_.panel_width);
        PackedMatrix matrix{source.inputs, source.outputs, nullptr, nullptr, nullptr, nullptr};
        matrix.panels = take(kernels_.packed_bytes(format_, source.inputs, source.outputs));
        matrix.bias = vector(source.bias, source.outputs);
        if (format_ == WeightFormat::int8) {
            matrix.scales = static_cast<float*>(take(padded * 4));
            matrix.sums = static_cast<std::int32_t*>(take(padded * 4));
        }
        if (memory_ != nullptr) kernels_.pack_matrix(source.weight, format_, matrix, threads_);
        return matrix;
    }

    NormWeights norm(const NormSource& source, std::int64_t embed) {
        return {vector(source.weight, embed), vector(source.bias, embed), source.eps};
    }

    // Padded to whole panels by 0.
    float* vector(const float* from, std::int64_t count) {
        const std::int64_t padded = round_up(count, kernels_.panel_width);
        float* to = copy(from, count, padded);
        if (to != nullptr) std::fill(to + count, to + padded, 0.0f);
        return to;
    }

    float* copy(const float* from, std::int64_t count, std::int64_t room) {
        float* to = static_cast<float*>(take(room * 4));
        if (to != nullptr) std::memcpy(to, from, static_cast<std::size_t>(count) * 4);
        return to;
    }

private:
    void* take(std::int64_t size) {
        void* piece = memory_ == nullptr ? nullptr : memory_ + bytes_;
        bytes_ += round_up(size, kCacheLine);
        return piece;
    }

    const Kernels& kernels_;
    WeightFormat format_;
    int threads_;
    char* memory_;
    std::int64_t bytes_ = 0;
};

PackedDecoder::PackedDecoder(const DecoderShape& shape, const std::vector<LayerSource>& layers,
                             const NormSource& norm, const TokenSource* tokens, int threads)
    : kernels_(live_kernels()), layers_(layers.size()) {
    model_.format = shape.format;
    model_.num_layers = static_cast<std::int64_t>(layers.size());
    model_.heads = shape.heads;
    model_.head_dim = shape.head_dim;
    model_.embed = shape.heads * shape.head_dim;
    model_.hidden = shape.hidden;
    model_.map = shape.map;
    model_.eps = shape.eps;
    model_.norm_first = shape.norm_first;
    model_.activation = shape.activation;
    model_.layers = layers_.data();

    Shelf measure(kernels_, shape.format, threads, nullptr);
    place(measure, layers, norm, tokens);
    bytes_ = measure.bytes();
    memory_.reset(allocate(bytes_));
    Shelf shelf(kernels_, shape.format, threads, static_cast<char*>(memory_.get()));
    place(shelf, layers, norm, tokens);
}

void PackedDecoder::place(Shelf& shelf, const std::vector<LayerSource>& layers,
                          const NormSource& norm, const TokenSource* tokens) {
    const std::int64_t embed = model_.embed;
    for (std::size_t i = 0; i < layers.size(); ++i) {
        const LayerSource& from = layers[i];
        DecoderLayer& to = layers_[i];
        to.norm1 = shelf.norm(from.norm1, embed);
        to.qkv = shelf.matrix(from.qkv);
        to.out = shelf.matrix(from.out);
        to.norm2 = shelf.norm(from.norm2, embed);
        to.expand = shelf.matrix(from.expand);
        to.contract = shelf.matrix(from.contract);
    }
    model_.norm = shelf.norm(norm, embed);
    if (tokens == nullptr) return;
    TokenWeights& to = model_.tokens;
    to.channels = static_cast<std::int64_t>(tokens->embeddings.size());
    to.levels = tokens->levels;
    to.max_length = tokens->max_length;
    to.head = tokens->head;
    to.choices = tokens->choices;
    to.lowest_log_scale = tokens->lowest_log_scale;
    to.output = shelf.matrix(tokens->output);
    to.start = shelf.copy(tokens->start, embed, embed);
    const std::int64_t entries = to.levels * embed, places = to.max_length * embed;
    to.positions = shelf.copy(tokens->positions, places, places);
    for (std::size_t c = 0; c < tokens->embeddings.size(); ++c) {
        to.embeddings[c] = shelf.copy(tokens->embeddings[c], entries, entries);
    }
}

void PackedDecoder::run(DecoderCall call) const {
    call.threads = team_size(call.threads);
    if (model_.tokens.channels > 0) check(call);
    if (call.batch == 0 || call.inputs == 0) return;
    const std::unique_ptr<void, Release> workspace(allocate(kernels_.workspace_bytes(model_, call)));
    kernels_.decode(model_, call, workspace.get());
}

void PackedDecoder::check(const DecoderCall& call) const {
    const TokenWeights& tokens = model_.tokens;
    const std::int64_t count = call.batch * (call.inputs - call.begins) * tokens.channels;
    if (count > 0) {
        const auto range = std::minmax_element(call.tokens, call.tokens + count);
        if (*range.first < 0 || *range.second >= tokens.levels) {
            throw std::invalid_argument(outside("tokens", tokens.levels, *range.first, *range.second));
        }
    }
    const std::int64_t* const own = call.first;
    const bool rows = own != nullptr && call.batch > 0;
    const std::int64_t low = rows ? *std::min_element(own, own + call.batch) : call.position;
    const std::int64_t high = rows ? *std::max_element(own, own + call.batch) : call.position;
    if (low < 0 || high + call.inputs > tokens.max_length) {
        const std::int64_t last = high + call.inputs - 1;
        throw std::invalid_argument(outside("positions", tokens.max_length, low, last));
    }
}

}  // namespace linattn
