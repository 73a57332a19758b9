#include "library/sequences.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstring>

#include "cores.hpp"
#include "library/random.hpp"

namespace linattn {

namespace {

constexpr std::int64_t kMostRows = 1 << 20;
constexpr std::int64_t kMostNumbers = std::min<std::int64_t>(std::int64_t{1} << 40, PTRDIFF_MAX / 8);  // of a state
constexpr double kLeastTemperature = 1e-30, kGreedy = 1e-300;  // as in linattn_models.heads.base
const char* const kState = "linattn decoding state";

// The text of each token: a byte, or a character of the table in UTF-8.
std::vector<std::string> read_pieces(const std::map<std::string, std::string>& metadata) {
    std::vector<std::string> pieces;
    const auto found = metadata.find("tokenizer");
    if (found == metadata.end()) return pieces;
    if (found->second == "bytes") {
        for (int byte = 0; byte < 256; ++byte) pieces.emplace_back(1, static_cast<char>(byte));
    } else if (const auto table = metadata.find("characters");
               found->second == "characters" && table != metadata.end()) {
        for (const char c : table->second) {
            const bool continues = (static_cast<unsigned char>(c) & 0xC0) == 0x80 && !pieces.empty();
            if (!continues) pieces.emplace_back();
            pieces.back() += c;
        }
    }
    return pieces;
}

std::int64_t product(const Shape& shape) {
    std::int64_t numbers = 1;
    for (const std::int64_t dim : shape) {
        if (numbers > kMostNumbers / dim) throw refused("the state", "a smaller one", "a shape of " + in_words(shape));
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

}  // namespace

Model::Model(const void* bytes, std::int64_t size, int threads) : threads(threads <= 0 ? available_cores() : threads) {
    const ModelFile file(bytes, size);
    const ModelSource& source = file.source;
    const std::int64_t heads = source.kv_heads, dim = source.head_dim, features = source.features;
    const std::int64_t key_numbers = dim + (source.layers[0].decay_weight != nullptr);
    if (source.window > 0)
        parts = {{"keys", {heads, source.window, key_numbers}, 0}, {"values", {heads, source.window, dim}, 0}};
    parts.push_back({"s", {heads, features, dim}, 0});
    parts.push_back({"z", {heads, features}, 0});
    for (Part& part : parts) {
        part.numbers = product(part.shape);
        info.state_bytes += part.numbers * 4 * static_cast<std::int64_t>(source.layers.size());
    }
    metadata = file.content.metadata;
    has_start = file.has_start;
    info.layers = static_cast<std::int64_t>(source.layers.size());
    info.width = info.parameters = source.heads * dim;
    info.window = source.window;
    if (source.tokens) {
        const TokenSource& tokens = *source.tokens;
        info.levels = tokens.levels, info.channels = static_cast<std::int64_t>(tokens.embeddings.size());
        info.parameters = tokens.output.outputs, info.max_length = tokens.max_length;
        head = tokens.head;
        pieces = read_pieces(metadata);
        const auto known = static_cast<std::int64_t>(pieces.size());
        if (known > 0 && (known != info.levels || info.channels != 1)) {
            throw refused(
                "the tokenizer",
                "one for " + std::to_string(info.levels) + " tokens of " + std::to_string(info.channels) + " values",
                std::to_string(known) + " of one value");
        }
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

Sequences::Sequences(SharedModel model, const TensorFile& file)
    : Sequences(model, [&] {
          const auto format = file.metadata.find("format"), version = file.metadata.find("version");
          const bool known =
              format != file.metadata.end() && format->second == kState && version != file.metadata.end();
          if (!known || version->second != "1")
              throw refused("the state", "a file of DecodingState, version 1", "another file");
          const auto position = file.tensors.find("position");
          const bool whole =
              position != file.tensors.end() && position->second.dtype == "I64" && position->second.shape.size() == 1;
          if (!whole) throw refused("the state", "the positions of its rows", "none");
          std::int64_t bytes = 0, rows = position->second.shape[0];
          for (const auto& each : file.tensors) bytes += each.second.bytes;
          if (rows > 0 && bytes / rows < model->info.state_bytes) {  // before memory is taken for the rows
              throw refused(
                  "the state",
                  std::to_string(model->info.state_bytes) + " bytes for each of " + std::to_string(rows) + " rows",
                  std::to_string(bytes) + " in all");
          }
          return rows;
      }()) {
    const auto own = model_->metadata.find("fingerprint"), other = file.metadata.find("fingerprint");
    if (own != model_->metadata.end() && other != file.metadata.end() && own->second != other->second) {
        throw refused("the state", "one that this model's weights made", "one of other weights");
    }
    const auto find = [&](const std::string& name, Shape shape) {
        shape.insert(shape.begin(), rows());
        const auto found = file.tensors.find(name);
        const bool fits = found != file.tensors.end() && found->second.shape == shape && found->second.dtype == "F32";
        if (!fits) throw refused("the state", "'" + name + "' of float32, " + in_words(shape), "another or none");
        return reinterpret_cast<const float*>(found->second.data);
    };
    std::size_t used = 1;
    for (std::size_t layer = 0; layer < static_cast<std::size_t>(model_->info.layers); ++layer) {
        for (std::size_t i = 0; i < model_->parts.size(); ++i, ++used) {
            const Model::Part& kind = model_->parts[i];
            const float* const from = find("layers." + std::to_string(layer) + "." + kind.name, kind.shape);
            std::copy_n(from, rows() * kind.numbers, part(layer, i));
        }
    }
    if (file.tensors.count("parameters")) {
        ++used;
        const float* const from = find("parameters", {model_->info.parameters});
        parameters_.assign(from, from + rows() * model_->info.parameters);
    }
    used += file.tensors.count("recent");  // the last tokens, which only texts in Python need
    if (used != file.tensors.size())
        throw refused("the state", std::to_string(used) + " tensors", std::to_string(file.tensors.size()));
    std::memcpy(positions_.data(), file.tensors.at("position").data, positions_.size() * sizeof(std::int64_t));
    const std::int64_t most = model_->info.max_length > 0 ? model_->info.max_length : std::int64_t{1} << 53;
    for (const std::int64_t position : positions_) {
        if (position < 0 || position > most)
            throw refused("the state", "positions in 0.." + std::to_string(most), std::to_string(position));
    }
}

float* Sequences::part(std::size_t layer, std::size_t part) {
    float* at = numbers_.data() +
                static_cast<std::int64_t>(layer) * rows() * (model_->info.state_bytes / 4 / model_->info.layers);
    for (std::size_t i = 0; i < part; ++i) at += rows() * model_->parts[i].numbers;
    return at;
}

void Sequences::run(DecoderCall call, std::int64_t inputs) {
    std::array<std::vector<float*>, 4> lists;
    const std::size_t kinds = model_->parts.size(), first = 4 - kinds;
    for (std::size_t layer = 0; layer < static_cast<std::size_t>(model_->info.layers); ++layer) {
        for (std::size_t i = 0; i < kinds; ++i) lists[first + i].push_back(part(layer, i));
    }
    call.batch = rows(), call.inputs = inputs;
    if (rows() > 1) call.positions = positions_.data();
    call.position = positions_[0];
    call.keys = lists[0].data(), call.values = lists[1].data(), call.s = lists[2].data(), call.z = lists[3].data();
    call.threads = model_->threads;
    model_->decoder->run(call);
    for (std::int64_t& position : positions_) position += inputs;
}

void Sequences::check_room(std::int64_t inputs) const {
    const std::int64_t last = *std::max_element(positions_.begin(), positions_.end()) + inputs,
                       most = model_->info.max_length;
    if (most > 0 && last > most) {
        throw refused("the sequence", "at most " + std::to_string(most) + " positions", std::to_string(last));
    }
}

void Sequences::read(const std::int32_t* tokens, std::int64_t count) {
    const linattn_info& info = model_->info;
    if (info.channels == 0) throw refused("the model", "one of tokens", "one of vectors");
    check_count(count, tokens);
    const auto begun =
        std::count_if(positions_.begin(), positions_.end(), [](std::int64_t place) { return place > 0; });
    const bool begins = model_->has_start && begun == 0;
    if (model_->has_start && begun != 0 && begun != rows())
        throw refused("the state", "rows that all have begun, or none", "both");
    const std::int64_t inputs = count + begins;
    if (inputs == 0) return;
    check_room(inputs);
    const std::vector<std::int64_t> wide(tokens, tokens + rows() * count * info.channels);
    std::vector<float> parameters(static_cast<std::size_t>(rows() * info.parameters));
    DecoderCall call{};
    call.begins = begins, call.tokens = wide.data(), call.outputs = parameters.data();
    run(call, inputs);
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

namespace {

// Which tokens each row has, and their penalty; see linattn_models.decoding.sampling.Repetitions.
class Repetitions {
public:
    Repetitions(double penalty, std::int64_t rows, std::int64_t levels)
        : penalty_(static_cast<float>(penalty)),
          levels_(levels),
          seen_(static_cast<std::size_t>(penalty == 1 ? 0 : rows * levels)) {}

    void add(std::int64_t row, std::int32_t token) {
        if (!seen_.empty()) seen_[static_cast<std::size_t>(row * levels_ + token)] = true;
    }

    const float* penalize(const float* logits) {
        if (seen_.empty()) return logits;
        penalized_.assign(logits, logits + seen_.size());
        for (std::size_t i = 0; i < seen_.size(); ++i) {
            if (seen_[i]) penalized_[i] = logits[i] > 0 ? logits[i] / penalty_ : logits[i] * penalty_;
        }
        return penalized_.data();
    }

private:
    float penalty_;
    std::int64_t levels_;
    std::vector<bool> seen_;
    std::vector<float> penalized_;
};

}  // namespace

void Sequences::generate(const std::int32_t* prompt, std::int64_t prompt_count, const linattn_sampling& sampling,
                         std::int64_t count, const std::vector<std::int32_t>& stops, std::int32_t* tokens,
                         std::int64_t* lengths) {
    const std::int64_t batch = rows(), channels = model_->info.channels;
    check_sampling(sampling, *model_, batch);
    check_count(prompt_count, prompt), check_count(count, tokens);
    if (!stops.empty() && channels != 1)
        throw refused("stop", "none for pixels of colors", std::to_string(stops.size()));
    check_room(prompt_count + std::max<std::int64_t>(count - 1, 0) + (model_->has_start && positions_[0] == 0));
    read(prompt, prompt_count);
    if (parameters_.empty()) throw refused("the prompt", "at least one token", "none");
    Repetitions repetitions(sampling.repetition_penalty, batch, model_->info.levels);
    for (std::int64_t b = 0; b < batch; ++b) {
        for (std::int64_t i = 0; i < prompt_count; ++i) repetitions.add(b, prompt[(b * prompt_count + i) * channels]);
    }
    std::vector<std::int64_t> ends;
    ends.resize(static_cast<std::size_t>(batch), count);
    std::vector<std::int32_t> drawn(static_cast<std::size_t>(batch * channels));
    std::int64_t open = batch;
    for (std::int64_t i = 0; i < count && open > 0; ++i) {
        draw(sampling, repetitions.penalize(parameters_.data()), drawn.data());
        for (std::int64_t b = 0; b < batch; ++b) {
            std::copy_n(drawn.data() + b * channels, channels, tokens + (b * count + i) * channels);
            const std::int32_t token = drawn[static_cast<std::size_t>(b * channels)];
            repetitions.add(b, token);
            std::int64_t& end = ends[static_cast<std::size_t>(b)];
            const bool stops_here = std::find(stops.begin(), stops.end(), token) != stops.end();
            if (stops_here && end == count) end = i + 1, --open;
        }
        if (i + 1 < count && open > 0) read(drawn.data(), 1);
    }
    if (lengths != nullptr) std::copy(ends.begin(), ends.end(), lengths);
}

std::vector<char> Sequences::save() const {
    TensorFile file;
    file.metadata = {{"format", kState}, {"version", "1"}, {"max_length", ""}};
    if (model_->info.max_length > 0) file.metadata["max_length"] = std::to_string(model_->info.max_length);
    const auto own = model_->metadata.find("fingerprint");
    if (own != model_->metadata.end()) file.metadata["fingerprint"] = own->second;
    const auto add = [&](const std::string& name, const char* dtype, Shape shape, const void* data, std::int64_t item) {
        shape.insert(shape.begin(), rows());
        file.tensors[name] = {dtype, shape, static_cast<const char*>(data), product(shape) * item};
    };
    add("position", "I64", {}, positions_.data(), 8);
    if (!parameters_.empty()) add("parameters", "F32", {model_->info.parameters}, parameters_.data(), 4);
    const float* at = numbers_.data();
    for (std::int64_t layer = 0; layer < model_->info.layers; ++layer) {
        for (const Model::Part& kind : model_->parts) {
            add("layers." + std::to_string(layer) + "." + kind.name, "F32", kind.shape, at, 4);
            at += rows() * kind.numbers;
        }
    }
    return write_tensors(file);
}

}  // namespace linattn
