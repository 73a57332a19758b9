#include "library/sequences.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstring>

#include "cores.hpp"
#include "library/model_file.hpp"

namespace linattn {

namespace {

constexpr std::int64_t kMostRows = 1 << 20;
constexpr std::int64_t kMostNumbers = std::min<std::int64_t>(std::int64_t{1} << 40, PTRDIFF_MAX / 8);  // of a state
constexpr double kLeastTemperature = 1e-30, kGreedy = 1e-300;  // as in linattn_models.heads.base
const char* const kState = "linattn decoding state";

// The text of each token: a byte, or a character of the table in UTF-8.
std::vector<std::string> read_pieces(const Metadata& metadata, const linattn_info& info) {
    std::vector<std::string> pieces;
    const std::string& kind = find_text(metadata, "tokenizer");
    if (kind == "bytes") {
        for (int byte = 0; byte < 256; ++byte) pieces.emplace_back(1, static_cast<char>(byte));
    } else if (kind == "characters") {
        for (const char c : find_text(metadata, "characters")) {
            const bool continues = (static_cast<unsigned char>(c) & 0xC0) == 0x80;
            if (!continues || pieces.empty()) pieces.emplace_back();
            pieces.back() += c;
        }
    }
    const auto known = static_cast<std::int64_t>(pieces.size());
    if (known > 0 && (known != info.levels || info.channels != 1)) {
        throw refused(
            "the tokenizer",
            "one for " + std::to_string(info.levels) + " tokens of " + std::to_string(info.channels) + " values",
            std::to_string(known) + " of one value");
    }
    return pieces;
}

std::int64_t product(const Shape& shape) {
    std::int64_t numbers = 1;
    for (const std::int64_t dim : shape) {
        if (numbers > kMostNumbers / dim) throw refused("the state", "a smaller one", "one of too many numbers");
        numbers *= dim;
    }
    return numbers;
}

// Of tokens or vectors of each row, whose sum with a position fits into 64 bits.
void check_count(std::int64_t count, const void* memory) {
    if (count < 0 || count > (std::int64_t{1} << 40) || (memory == nullptr && count > 0)) {
        throw refused("count", "the tokens or vectors of each row, and their memory", std::to_string(count));
    }
}

std::string shortly(double number) {
    char words[32];
    std::snprintf(words, sizeof words, "%g", number);
    return words;
}

void check_between(const char* name, double value, double low, double high) {
    if (!(value >= low && value <= high)) {
        throw refused(name, "a number in " + shortly(low) + ".." + shortly(high), shortly(value));
    }
}

void check_sampling(const linattn_sampling& sampling, const Model& model, std::int64_t rows) {
    if (model.head == Head::none) throw refused("the model", "a head that draws tokens", "one without");
    check_between("temperature", sampling.temperature, 0, 1e30);
    check_between("top_p", sampling.top_p, 0, 1);
    check_between("min_p", sampling.min_p, 0, 1);
    check_between("repetition_penalty", sampling.repetition_penalty, 1e-30, 1e30);
    if (sampling.top_k < 0) throw refused("top_k", "0 or more", std::to_string(sampling.top_k));
    if (sampling.sample < 0 || sampling.sample > (std::int64_t{1} << 32) - rows) {
        throw refused("sample", "a number in 0..2^32 - 1", std::to_string(sampling.sample));
    }
    const bool filters =
        sampling.top_k > 0 || sampling.top_p > 0 || sampling.min_p > 0 || sampling.repetition_penalty != 1;
    if (filters && model.head != Head::categorical) {
        throw refused("top_k, top_p, min_p and repetition_penalty", "a categorical head", "another");
    }
}

// The rows of a state in a file, which has the bytes of so many: before memory is taken for them.
std::int64_t count_rows(const TensorFile& file, const Model& model) {
    if (find_text(file.metadata, "format") != kState || find_text(file.metadata, "version") != "1")
        throw refused("the state", "a file of DecodingState, version 1", "another file");
    const auto position = file.tensors.find("position");
    if (position == file.tensors.end() || position->second.shape.empty())
        throw refused("the state", "the positions of its rows", "none");
    std::int64_t bytes = 0, rows = position->second.shape[0];
    for (const auto& each : file.tensors) bytes += each.second.bytes;
    if (rows > 0 && bytes / rows < model.info.state_bytes) {
        throw refused("the state",
                      std::to_string(model.info.state_bytes) + " bytes for each of " + std::to_string(rows) + " rows",
                      std::to_string(bytes) + " in all");
    }
    return rows;
}

// Four numbers in (0, 1) for one position of a row, by Philox 4x32-10 (Salmon et al., 2011), as
// linattn_models.decoding.philox draws them.
void draw_numbers(std::int64_t seed, std::int64_t sample, std::int64_t position, double* numbers) {
    const auto place = static_cast<std::uint64_t>(position), bits = static_cast<std::uint64_t>(seed);
    std::uint32_t words[4] = {static_cast<std::uint32_t>(place), static_cast<std::uint32_t>(place >> 32),
                              static_cast<std::uint32_t>(sample), 0};
    std::uint32_t key[2] = {static_cast<std::uint32_t>(bits), static_cast<std::uint32_t>(bits >> 32)};
    for (int round = 0; round < 10; ++round) {
        const std::uint64_t first = std::uint64_t{0xD2511F53} * words[0], second = std::uint64_t{0xCD9E8D57} * words[2];
        words[0] = static_cast<std::uint32_t>(second >> 32) ^ words[1] ^ key[0];
        words[2] = static_cast<std::uint32_t>(first >> 32) ^ words[3] ^ key[1];
        words[1] = static_cast<std::uint32_t>(second);
        words[3] = static_cast<std::uint32_t>(first);
        key[0] += 0x9E3779B9, key[1] += 0xBB67AE85;
    }
    for (int i = 0; i < 4; ++i) numbers[i] = (words[i] + 0.5) / 4294967296.0;
}

// The logits, with a penalty for tokens that a row has seen: as linattn_models.decoding.sampling.Repetitions.
std::vector<float> penalize(std::vector<float> logits, const std::vector<bool>& seen, float penalty) {
    for (std::size_t i = 0; i < logits.size(); ++i) {
        if (seen[i]) logits[i] = logits[i] > 0 ? logits[i] / penalty : logits[i] * penalty;
    }
    return logits;
}

}  // namespace

Model::Model(const TensorFile& file, int threads)
    : metadata(file.metadata), threads(threads > 0 ? threads : available_cores()) {
    const ModelSource source = read_model(file);
    const std::int64_t heads = source.kv_heads, dim = source.head_dim, features = source.features;
    for (std::size_t i = 0; i < source.layers.size(); ++i) {
        const auto add = [&](const char* name, const Shape& shape) {
            parts.push_back({"layers." + std::to_string(i) + "." + name, shape, product(shape)});
            info.state_bytes += 4 * parts.back().numbers;
        };
        if (source.window > 0) {
            add("keys", {1, heads, source.window, dim + (source.layers[i].decay_weight != nullptr)});
            add("values", {1, heads, source.window, dim});
        }
        add("s", {1, heads, features, dim});
        add("z", {1, heads, features});
    }
    info.layers = static_cast<std::int64_t>(source.layers.size());
    info.width = info.parameters = source.heads * dim;
    info.window = source.window;
    if (source.tokens) {
        const TokenSource& tokens = *source.tokens;
        info.levels = tokens.levels, info.channels = static_cast<std::int64_t>(tokens.embeddings.size());
        info.parameters = tokens.output.outputs, info.max_length = tokens.max_length;
        head = tokens.head, has_start = tokens.start != nullptr;
        pieces = read_pieces(metadata, info);
    }
    decoder = std::make_unique<PackedDecoder>(source, this->threads);
    info.model_bytes = decoder->nbytes();
}

Sequences::Sequences(SharedModel model, std::int64_t rows) : model_(std::move(model)) {
    if (rows < 1 || rows > kMostRows) throw refused("rows", "1 to " + std::to_string(kMostRows), std::to_string(rows));
    product({rows, model_->info.parameters});  // is no more than memory can have
    positions_.assign(static_cast<std::size_t>(rows), 0);
    numbers_.assign(static_cast<std::size_t>(product({rows, model_->info.state_bytes / 4})), 0.0f);
}

Sequences::Sequences(SharedModel model, const TensorFile& file) : Sequences(model, count_rows(file, *model)) {
    const std::string &own = find_text(model_->metadata, "fingerprint"),
                      &other = find_text(file.metadata, "fingerprint");
    if (!own.empty() && !other.empty() && own != other)
        throw refused("the state", "one that this model's weights made", "one of other weights");
    std::size_t used = file.tensors.count("recent");  // the last tokens, which only texts in Python need
    const auto find = [&](const std::string& name, const char* dtype, Shape shape) {
        shape[0] = rows();
        ++used;
        return find_tensor(file, name, dtype, shape).data;
    };
    const auto floats = [&](const std::string& name, const Shape& shape) {
        return reinterpret_cast<const float*>(find(name, "F32", shape));
    };
    std::memcpy(positions_.data(), find("position", "I64", {1}), positions_.size() * sizeof(std::int64_t));
    float* at = numbers_.data();
    for (const Model::Part& part : model_->parts)
        at = std::copy_n(floats(part.name, part.shape), rows() * part.numbers, at);
    if (file.tensors.count("parameters")) {
        const float* const from = floats("parameters", {1, model_->info.parameters});
        parameters_.assign(from, from + rows() * model_->info.parameters);
    }
    if (used != file.tensors.size())
        throw refused("the state", std::to_string(used) + " tensors", std::to_string(file.tensors.size()));
    const std::int64_t most = model_->info.max_length > 0 ? model_->info.max_length : std::int64_t{1} << 53;
    for (const std::int64_t position : positions_) {
        if (position < 0 || position > most)
            throw refused("the state", "positions in 0.." + std::to_string(most), std::to_string(position));
    }
}

// Whether the start vector comes next.
bool Sequences::begins() const {
    const auto new_rows = std::count(positions_.begin(), positions_.end(), 0);
    if (!model_->has_start || new_rows == 0) return false;
    if (new_rows != rows()) throw refused("the state", "rows that all have begun, or none", "both");
    return true;
}

// Reads the call's inputs, so many of each row, into the states.
void Sequences::run(DecoderCall call, std::int64_t inputs) {
    std::array<std::vector<float*>, 4> lists;  // of keys, values, s and z
    const std::size_t kinds = model_->parts.size() / static_cast<std::size_t>(model_->info.layers);
    float* at = numbers_.data();
    for (std::size_t i = 0; i < model_->parts.size(); ++i) {
        lists[4 - kinds + i % kinds].push_back(at);
        at += rows() * model_->parts[i].numbers;
    }
    call.batch = rows(), call.inputs = inputs;
    if (rows() > 1) call.positions = positions_.data();
    call.position = positions_[0];
    call.keys = lists[0].data(), call.values = lists[1].data(), call.s = lists[2].data(), call.z = lists[3].data();
    call.threads = model_->threads;
    model_->decoder->run(call);
    for (std::int64_t& position : positions_) position += inputs;
}

void Sequences::read(const std::int32_t* tokens, std::int64_t count) {
    const linattn_info& info = model_->info;
    if (info.channels == 0) throw refused("the model", "one of tokens", "one of vectors");
    check_count(count, tokens);
    DecoderCall call{};
    call.begins = begins();
    if (count + call.begins == 0) return;
    const std::vector<std::int64_t> wide(tokens, tokens + rows() * count * info.channels);
    std::vector<float> parameters(static_cast<std::size_t>(rows() * info.parameters));
    call.tokens = wide.data(), call.outputs = parameters.data();
    run(call, count + call.begins);
    parameters_ = std::move(parameters);
}

void Sequences::read_vectors(const float* vectors, std::int64_t count, float* outputs) {
    if (model_->info.channels > 0) throw refused("the model", "one of vectors", "one of tokens");
    check_count(count, vectors), check_count(count, outputs);
    DecoderCall call{};
    call.vectors = vectors, call.outputs = outputs;
    run(call, count);
}

void Sequences::sample(const linattn_sampling& sampling, std::int32_t* tokens) const {
    check_sampling(sampling, *model_, rows());
    if (sampling.repetition_penalty != 1) throw refused("repetition_penalty", "1, or linattn_generate", "a penalty");
    if (parameters_.empty()) throw refused("the state", "tokens that were read", "none");
    draw(sampling, parameters_.data(), tokens);
}

void Sequences::draw(const linattn_sampling& sampling, const float* parameters, std::int32_t* tokens) const {
    const std::int64_t batch = rows(), channels = model_->info.channels;
    const auto count = static_cast<std::size_t>(batch);
    for (std::int64_t i = 0; i < batch * model_->info.parameters; ++i) {
        if (std::isnan(parameters[i])) throw refused("the model's outputs", "numbers", "NaN");
    }
    const bool greedy = sampling.temperature < kLeastTemperature;
    std::vector<double> quantiles(4 * count, 0.0);
    for (std::int64_t b = 0; !greedy && b < batch; ++b) {
        const std::int64_t place = positions_[static_cast<std::size_t>(b)] - model_->has_start;
        draw_numbers(sampling.seed, sampling.sample + b, place, quantiles.data() + 4 * b);
    }
    const std::vector<double> temperatures(count, greedy ? kGreedy : sampling.temperature);
    const std::vector<double> top_ps(count, sampling.top_p < 1 ? sampling.top_p : 0), min_ps(count, sampling.min_p);
    const std::vector<std::int64_t> top_ks(count, sampling.top_k);
    std::vector<std::int64_t> drawn(count * static_cast<std::size_t>(channels));
    DecoderCall drawing{};
    drawing.batch = batch;
    drawing.outputs = const_cast<float*>(parameters);  // a draw only reads them
    drawing.quantiles = quantiles.data(), drawing.temperatures = temperatures.data();
    drawing.top_ks = top_ks.data(), drawing.top_ps = top_ps.data(), drawing.min_ps = min_ps.data();
    drawing.drawn = drawn.data();
    model_->decoder->draw(drawing);
    std::copy(drawn.begin(), drawn.end(), tokens);
}

void Sequences::generate(const std::int32_t* prompt, std::int64_t prompt_count, const linattn_sampling& sampling,
                         std::int64_t count, const std::vector<std::int32_t>& stops, std::int32_t* tokens,
                         std::int64_t* lengths) {
    const std::int64_t batch = rows(), channels = model_->info.channels;
    check_sampling(sampling, *model_, batch);
    check_count(prompt_count, prompt), check_count(count, tokens);
    if (!stops.empty() && channels != 1)
        throw refused("stop", "none for pixels of colors", std::to_string(stops.size()));
    const std::int64_t first = *std::max_element(positions_.begin(), positions_.end()) + begins();
    const std::int64_t last = first + prompt_count + std::max<std::int64_t>(count - 1, 0);
    const std::int64_t most = model_->info.max_length;
    if (most > 0 && last > most)
        throw refused("the sequence", "at most " + std::to_string(most) + " positions", std::to_string(last));
    read(prompt, prompt_count);
    if (parameters_.empty()) throw refused("the prompt", "at least one token", "none");
    const bool is_penalized = sampling.repetition_penalty != 1;
    std::vector<bool> seen(is_penalized ? parameters_.size() : 0);  // (B, levels)
    const auto see = [&](std::int64_t b, std::int32_t token) {
        if (is_penalized) seen[static_cast<std::size_t>(b * model_->info.levels + token)] = true;
    };
    for (std::int64_t i = 0; i < batch * prompt_count; ++i) see(i / prompt_count, prompt[i * channels]);
    std::vector<std::int64_t> ends(static_cast<std::size_t>(batch), count);
    std::vector<std::int32_t> drawn(static_cast<std::size_t>(batch * channels));
    std::int64_t open = batch;
    for (std::int64_t i = 0; i < count && open > 0; ++i) {
        std::vector<float> penalized;
        if (is_penalized) penalized = penalize(parameters_, seen, static_cast<float>(sampling.repetition_penalty));
        draw(sampling, is_penalized ? penalized.data() : parameters_.data(), drawn.data());
        for (std::int64_t b = 0; b < batch; ++b) {
            std::int64_t& end = ends[static_cast<std::size_t>(b)];
            if (i >= end) continue;  // it has ended, and reads on with the others
            std::copy_n(drawn.data() + b * channels, channels, tokens + (b * count + i) * channels);
            const std::int32_t token = drawn[static_cast<std::size_t>(b * channels)];
            see(b, token);
            if (std::find(stops.begin(), stops.end(), token) != stops.end()) end = i + 1, --open;
        }
        if (i + 1 < count && open > 0) read(drawn.data(), 1);
    }
    if (lengths != nullptr) std::copy(ends.begin(), ends.end(), lengths);
}

std::vector<char> Sequences::save() const {
    TensorFile file;
    file.metadata = {{"format", kState}, {"version", "1"}, {"max_length", ""}};
    if (model_->info.max_length > 0) file.metadata["max_length"] = std::to_string(model_->info.max_length);
    const std::string& fingerprint = find_text(model_->metadata, "fingerprint");
    if (!fingerprint.empty()) file.metadata["fingerprint"] = fingerprint;
    const auto add = [&](const std::string& name, const char* dtype, Shape shape, const void* data,
                         std::int64_t bytes) {
        shape[0] = rows();
        file.tensors[name] = {dtype, shape, static_cast<const char*>(data), rows() * bytes};
    };
    add("position", "I64", {1}, positions_.data(), 8);
    const std::int64_t parameters = model_->info.parameters;
    if (!parameters_.empty()) add("parameters", "F32", {1, parameters}, parameters_.data(), 4 * parameters);
    const float* at = numbers_.data();
    for (const Model::Part& part : model_->parts) {
        add(part.name, "F32", part.shape, at, 4 * part.numbers);
        at += rows() * part.numbers;
    }
    return write_tensors(file);
}

}  // namespace linattn
