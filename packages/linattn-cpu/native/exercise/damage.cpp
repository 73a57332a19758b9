// Damages files of models and of states, and opens them by liblinattn: each is refused with a sentence, or decodes. A
// build with a sanitizer finds reads past an end.
//
//     damage [files] [the number of the first]
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <thread>

#include "exercise/small_model.hpp"
#include "instruction_sets.hpp"
#include "library/linattn.h"
#include "memory.hpp"

namespace linattn::exercise {

using Bytes = std::vector<char>;

// Files of one model, before it is damaged in another way.
constexpr int kOfOneModel = 32;
// The most bytes of a state that is stepped: a damaged size may ask for more than there is.
constexpr std::int64_t kMostState = 1 << 20;

struct Counts {
    std::atomic<int> refused{0}, opened{0}, decoded{0};
};

void require(bool holds, const char* what) {
    if (holds) return;
    std::fprintf(stderr, "expected %s; the last error: '%s'\n", what, linattn_error());
    std::abort();
}

// Changes one thing of a file's header, whose words are names, kinds, settings and numbers.
class HeaderDamage {
public:
    HeaderDamage(Random& random, std::string& text) : random_(random), text_(text) {
        for (std::size_t i = 0; i < text.size(); ++i) {
            if (!is_of_word(text[i])) continue;
            const std::size_t first = i;
            while (i < text.size() && is_of_word(text[i])) ++i;
            words_.push_back({first, i - first});
        }
    }

    void apply() {
        if (words_.empty()) return;
        const Word at = any(), other = any();
        switch (between(random_, 0, 6)) {
            case 0: text_.replace(at.first, at.count, extreme()); break;
            case 1: text_.replace(at.first, at.count, text_.substr(other.first, other.count)); break;
            case 2: text_.erase(at.first, static_cast<std::size_t>(between(random_, 1, 80))); break;
            case 3:
                text_.insert(at.first, text_.substr(other.first, static_cast<std::size_t>(between(random_, 1, 80))));
                break;
            case 4: replace_all(text_.substr(at.first, at.count), text_.substr(other.first, other.count)); break;
            case 5: nest(at.first); break;
            default: text_[at.first + at.count - 1] = static_cast<char>(between(random_, 0, 255));
        }
    }

private:
    struct Word {
        std::size_t first, count;
    };

    static bool is_of_word(char c) {
        return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '.' || c == '_';
    }

    Word any() {
        return words_[static_cast<std::size_t>(between(random_, 0, static_cast<std::int64_t>(words_.size()) - 1))];
    }

    std::string extreme() {
        static const char* const values[] = {"0",
                                             "1",
                                             "2",
                                             "3",
                                             "4",
                                             "6",
                                             "8",
                                             "127",
                                             "65536",
                                             "2147483647",
                                             "2147483648",
                                             "4294967296",
                                             "9007199254740992",
                                             "9007199254740993",
                                             "9223372036854775807",
                                             "18446744073709551616",
                                             "-1",
                                             "1e999",
                                             "nan",
                                             "1e-46",
                                             "0.5",
                                             "true",
                                             "F64",
                                             "I8",
                                             "U8",
                                             "",
                                             "\\u0000",
                                             "\\ud800",
                                             "\\ud83d\\ude42",
                                             "\\x",
                                             "none"};
        return values[between(random_, 0, static_cast<std::int64_t>(std::size(values)) - 1)];
    }

    void replace_all(const std::string& from, const std::string& to) {
        for (std::size_t at = 0; (at = text_.find(from, at)) != std::string::npos; at += to.size())
            text_.replace(at, from.size(), to);
    }

    // Objects or lists in one another.
    void nest(std::size_t at) {
        const std::string opens = between(random_, 0, 1) ? "{\"a\":" : "[";
        std::string nested;
        for (std::int64_t depth = between(random_, 1, 1000); depth > 0; --depth) nested += opens;
        text_.insert(at > 0 ? at - 1 : at, nested);
    }

    Random& random_;
    std::string& text_;
    std::vector<Word> words_;
};

std::size_t header_size(const Bytes& file) {
    std::size_t size = 0;
    for (int i = 7; i >= 0; --i) size = size << 8 | static_cast<unsigned char>(file[static_cast<std::size_t>(i)]);
    return size;
}

void set_header_size(Bytes& file, std::uint64_t size) {
    for (std::size_t i = 0; i < 8; ++i) file[i] = static_cast<char>(size >> (8 * i) & 255);
}

// The file with some changes, most of them in the header, whose length stays true.
Bytes damaged(Random& random, const Bytes& whole) {
    const auto data = whole.begin() + 8 + static_cast<std::ptrdiff_t>(header_size(whole));
    std::string header(whole.begin() + 8, data);
    for (std::int64_t changes = between(random, -2, 3); changes > 0; --changes) HeaderDamage(random, header).apply();
    if (between(random, 0, 3) > 0) header.resize(round_up(static_cast<std::int64_t>(header.size()), 8), ' ');
    Bytes file(8);
    set_header_size(file, header.size());
    file.insert(file.end(), header.begin(), header.end());
    file.insert(file.end(), data, whole.end());
    const auto size = static_cast<std::int64_t>(file.size());
    for (std::int64_t changes = between(random, -1, 3); changes > 0; --changes)
        file[static_cast<std::size_t>(between(random, 0, size - 1))] ^= static_cast<char>(1 << between(random, 0, 7));
    if (between(random, 0, 15) == 0) set_header_size(file, std::uint64_t{1} << between(random, 0, 63));
    if (between(random, 0, 7) == 0) file.resize(static_cast<std::size_t>(between(random, 0, size + 8)));
    return file;
}

// Bytes in memory of exactly their size.
class Exact {
public:
    explicit Exact(const Bytes& bytes) : memory_(new char[bytes.size()]) {
        std::copy(bytes.begin(), bytes.end(), memory_.get());
    }
    const char* data() const { return memory_.get(); }

private:
    std::unique_ptr<char[]> memory_;
};

Bytes saved(const linattn_state* state) {
    Bytes bytes(static_cast<std::size_t>(linattn_state_save(state, nullptr, 0)));
    require(linattn_state_save(state, bytes.data(), static_cast<std::int64_t>(bytes.size())) > 0,
            "a state to be saved");
    return bytes;
}

// Reads and draws some tokens; returns whether all calls succeeded.
bool decode(Random& random, linattn_state* state, const linattn_info& info) {
    const std::int64_t rows = linattn_state_rows(state), count = between(random, 0, 4), drawn = between(random, 0, 4);
    if (info.channels == 0) {
        std::vector<float> vectors(static_cast<std::size_t>(rows * count * info.width), 0.5f), outputs(vectors.size());
        return linattn_read_vectors(state, vectors.data(), count, outputs.data()) == 0;
    }
    linattn_sampling sampling = linattn_defaults();
    sampling.temperature = static_cast<double>(between(random, 0, 2)), sampling.seed = between(random, 0, 9);
    sampling.top_k = between(random, 0, 1) * between(random, 1, 3);
    sampling.top_p = static_cast<double>(between(random, 0, 1)) * 0.7;
    const std::int32_t stop = static_cast<std::int32_t>(between(random, 0, info.levels));
    std::vector<std::int32_t> prompt(static_cast<std::size_t>(rows * count * info.channels));
    for (auto& token : prompt) token = static_cast<std::int32_t>(between(random, 0, info.levels - (random() % 16 > 0)));
    std::vector<std::int32_t> tokens(static_cast<std::size_t>(rows * drawn * info.channels));
    return linattn_generate(state, prompt.data(), count, &sampling, drawn, &stop, info.channels == 1, tokens.data(),
                            nullptr) == 0;
}

// Steps a state, and a damaged copy of it where that loads; frees it.
void exercise_state(Random& random, const linattn_model* model, linattn_state* state, Counts& counts) {
    linattn_info info;
    require(linattn_describe(model, &info) == 0, "a description");
    if (decode(random, state, info)) ++counts.decoded;
    const Bytes bytes = damaged(random, saved(state));
    linattn_state_free(state);
    if (linattn_state* const loaded =
            linattn_state_load(model, Exact(bytes).data(), static_cast<std::int64_t>(bytes.size()))) {
        decode(random, loaded, info);
        linattn_state_free(loaded);
    }
}

void open_damaged(Random& random, const Bytes& whole, Counts& counts) {
    const Bytes bytes = damaged(random, whole);
    const int threads = random() % 8 > 0 ? 1 : 2;
    linattn_model* const model =
        linattn_open_bytes(Exact(bytes).data(), static_cast<std::int64_t>(bytes.size()), threads);
    if (model == nullptr) {
        require(std::strstr(linattn_error(), ": expected ") != nullptr, "a sentence");
        ++counts.refused;
        return;
    }
    ++counts.opened;
    linattn_info info;
    require(linattn_describe(model, &info) == 0, "a description");
    if (info.state_bytes <= kMostState) {
        linattn_state* const state = linattn_state_new(model, between(random, 1, 3));
        require(state != nullptr, "a state");
        exercise_state(random, model, state, counts);
    }
    linattn_close(model);
}

// The files from `first` to `last` - 1 of which each depends on its number alone, those of every second model.
void open_all(int first, int last, int part, Counts& counts) {
    Bytes whole;
    for (int number = first, of = -1; number < last; ++number) {
        const int model = number / kOfOneModel;
        if (model % 2 != part) continue;
        Random random(static_cast<unsigned>(model));
        if (model != of) whole = SmallModel(random).file(), of = model;
        random.seed(static_cast<unsigned>(number) + 1'000'000'000u);
        open_damaged(random, whole, counts);
    }
}

}  // namespace linattn::exercise

int main(int count, char** arguments) {
    const int files = count > 1 ? std::atoi(arguments[1]) : 100'000, first = count > 2 ? std::atoi(arguments[2]) : 0;
    linattn::exercise::Counts counts;
    const auto sets = linattn::usable_kernels();
    int done = 0;
    for (std::size_t i = 0; i < sets.size(); ++i) {
        linattn::use_instruction_set(sets[i]->instruction_set);
        const int next =
            static_cast<int>(static_cast<long long>(files) * static_cast<int>(i + 1) / static_cast<int>(sets.size()));
        std::thread other([&] { linattn::exercise::open_all(first + done, first + next, 0, counts); });
        linattn::exercise::open_all(first + done, first + next, 1, counts);
        other.join();
        done = next;
    }
    std::printf("%d damaged files: %d refused, %d opened, of which %d decoded.\n", files, counts.refused.load(),
                counts.opened.load(), counts.decoded.load());
    return 0;
}
