// The functions of linattn.h: no exception leaves them.
#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <utility>

#include "library/sequences.hpp"

#if defined(__unix__) || defined(__APPLE__)
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#endif

struct linattn_model {
    linattn::SharedModel model;
};

struct linattn_state {
    linattn::Sequences sequences;
};

namespace {

// The result of `work`, or `failed` and the reason in `last_error`.
template <class Work>
auto guarded(decltype(std::declval<Work>()()) failed, const Work& work) {
    linattn::last_error().clear();
    try {
        return work();
    } catch (const std::exception& error) {
        linattn::keep(error);
    }
    return failed;
}

template <class Work>
int status_of(const Work& work) {
    return guarded(-1, [&] { return work(), 0; });
}

template <class Type>
Type& required(Type* pointer, const char* what) {
    if (pointer == nullptr) throw linattn::refused(what, "one", "NULL");
    return *pointer;
}

#if defined(__unix__) || defined(__APPLE__)

// A file in memory, of which the system keeps no more than is being read.
class Contents {
public:
    explicit Contents(const char* file) {
        const int handle = open(file, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
        struct stat status;
        const bool is_file = handle >= 0 && fstat(handle, &status) == 0 && S_ISREG(status.st_mode);
        if (is_file) size = status.st_size;
        if (size > 0) bytes = mmap(nullptr, static_cast<std::size_t>(size), PROT_READ, MAP_PRIVATE, handle, 0);
        if (handle >= 0) close(handle);
        if (!is_file)
            throw linattn::refused(file, "a file that can be read", handle < 0 ? "none" : "a folder or a device");
        if (bytes == MAP_FAILED) throw linattn::refused(file, "a file of a model", std::to_string(size) + " bytes");
    }
    ~Contents() { munmap(bytes, static_cast<std::size_t>(size)); }
    Contents(const Contents&) = delete;
    Contents& operator=(const Contents&) = delete;

    void* bytes = MAP_FAILED;
    std::int64_t size = 0;
};

#else

struct Contents {
    explicit Contents(const char* file) { throw linattn::refused(file, "bytes for linattn_open_bytes", "a file"); }
    const void* bytes;
    std::int64_t size;
};

#endif

linattn_model* opened(const void* bytes, std::int64_t size, int threads) {
    return new linattn_model{std::make_shared<const linattn::Model>(linattn::read_tensors(bytes, size), threads)};
}

}  // namespace

extern "C" {

int linattn_abi(void) { return LINATTN_ABI; }

const char* linattn_error(void) { return linattn::last_error().c_str(); }

linattn_sampling linattn_defaults(void) { return {1, 0, 0, 1, 0, 0, 0}; }

linattn_model* linattn_open(const char* file, int threads) {
    return guarded(nullptr, [&] {
        const Contents contents(&required(file, "file"));
        return opened(contents.bytes, contents.size, threads);
    });
}

linattn_model* linattn_open_bytes(const void* bytes, int64_t size, int threads) {
    return guarded(nullptr, [&] { return opened(bytes, size, threads); });
}

void linattn_close(linattn_model* model) { delete model; }

int linattn_describe(const linattn_model* model, linattn_info* info) {
    return status_of([&] { required(info, "info") = required(model, "model").model->info; });
}

const char* linattn_metadata(const linattn_model* model, const char* name) {
    return guarded("", [&] {
        return linattn::find_text(required(model, "model").model->metadata, &required(name, "name")).c_str();
    });
}

linattn_state* linattn_state_new(const linattn_model* model, int64_t rows) {
    return guarded(nullptr,
                   [&] { return new linattn_state{linattn::Sequences(required(model, "model").model, rows)}; });
}

linattn_state* linattn_state_copy(const linattn_state* state) {
    return guarded(nullptr, [&] { return new linattn_state(required(state, "state")); });
}

void linattn_state_free(linattn_state* state) { delete state; }

int64_t linattn_state_rows(const linattn_state* state) { return state == nullptr ? 0 : state->sequences.rows(); }

int64_t linattn_state_save(const linattn_state* state, void* bytes, int64_t room) {
    return guarded(-1, [&] {
        const std::vector<char> file = required(state, "state").sequences.save();
        const auto size = static_cast<int64_t>(file.size());
        if (bytes != nullptr && room >= size) std::memcpy(bytes, file.data(), file.size());
        return size;
    });
}

linattn_state* linattn_state_load(const linattn_model* model, const void* bytes, int64_t size) {
    return guarded(nullptr, [&] {
        return new linattn_state{
            linattn::Sequences(required(model, "model").model, linattn::read_tensors(bytes, size))};
    });
}

int linattn_read(linattn_state* state, const int32_t* tokens, int64_t count) {
    return status_of([&] { required(state, "state").sequences.read(tokens, count); });
}

int linattn_read_vectors(linattn_state* state, const float* vectors, int64_t count, float* outputs) {
    return status_of([&] { required(state, "state").sequences.read_vectors(vectors, count, outputs); });
}

const float* linattn_parameters(const linattn_state* state) {
    return state == nullptr ? nullptr : state->sequences.parameters();
}

int linattn_sample(linattn_state* state, const linattn_sampling* sampling, int32_t* tokens) {
    return status_of([&] {
        required(state, "state").sequences.sample(required(sampling, "sampling"), &required(tokens, "tokens"));
    });
}

int linattn_generate(linattn_state* state, const int32_t* prompt, int64_t prompt_count,
                     const linattn_sampling* sampling, int64_t count, const int32_t* stop, int64_t stop_count,
                     int32_t* tokens, int64_t* lengths) {
    return status_of([&] {
        if (stop_count > 0) required(stop, "stop");
        const std::vector<std::int32_t> stops(stop, stop + std::max<int64_t>(stop_count, 0));
        required(state, "state")
            .sequences.generate(prompt, prompt_count, required(sampling, "sampling"), count, stops, tokens, lengths);
    });
}

int64_t linattn_encode(const linattn_model* model, const char* text, int64_t bytes, int32_t* tokens, int64_t room) {
    return guarded(-1, [&] {
        const std::vector<std::string>& pieces = required(model, "model").model->pieces;
        required(text, "text");
        if (pieces.empty()) throw linattn::refused("the model", "one of bytes or characters", "one of other tokens");
        std::vector<std::int32_t> encoded;
        for (int64_t at = 0; at < bytes;) {
            const auto starts = [&](const std::string& piece) {
                const auto size = static_cast<int64_t>(piece.size());
                return size <= bytes - at && std::memcmp(piece.data(), text + at, piece.size()) == 0;
            };
            const auto found = std::find_if(pieces.begin(), pieces.end(), starts);
            if (found == pieces.end())
                throw linattn::refused("the text", "characters of the model", "another at byte " + std::to_string(at));
            encoded.push_back(static_cast<std::int32_t>(found - pieces.begin()));
            at += static_cast<int64_t>(found->size());
        }
        const auto count = static_cast<int64_t>(encoded.size());
        if (tokens != nullptr && room >= count) std::copy(encoded.begin(), encoded.end(), tokens);
        return count;
    });
}

const char* linattn_decode(const linattn_model* model, int32_t token, int64_t* bytes) {
    return guarded(nullptr, [&] {
        const std::vector<std::string>& pieces = required(model, "model").model->pieces;
        if (token < 0 || static_cast<std::size_t>(token) >= pieces.size()) {
            throw linattn::refused("token", "one of the model's table", std::to_string(token));
        }
        const std::string& piece = pieces[static_cast<std::size_t>(token)];
        required(bytes, "bytes") = static_cast<int64_t>(piece.size());
        return piece.data();
    });
}

}  // extern "C"
