#include "library/tensor_file.hpp"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <new>
#include <set>

namespace linattn {

std::string& last_error() {
    thread_local std::string sentence;
    return sentence;
}

void keep(const std::exception& error) {
    // Compared by its words, because a library for browsers has no types at run time.
    const bool is_memory = std::strcmp(error.what(), std::bad_alloc().what()) == 0;
    last_error() = is_memory ? "memory: expected enough for the model or state, got none; use fewer rows or fewer bits."
                             : error.what();
}

// Words of a file may have any length, and what a terminal obeys.
static std::string readable(std::string words) {
    constexpr std::size_t kMost = 200;
    if (words.size() > kMost) words = words.substr(0, kMost) + "...";
    const auto is_control = [](unsigned char c) { return c < 0x20 || c == 0x7F; };
    std::replace_if(words.begin(), words.end(), is_control, '?');
    return words;
}

std::invalid_argument refused(const std::string& what, const std::string& wanted, const std::string& got) {
    return std::invalid_argument(readable(what) + ": expected " + readable(wanted) + ", got " + readable(got) + ".");
}

namespace {

constexpr std::int64_t kMostHeader = 100'000'000;  // the format's own limit
constexpr std::int64_t kMostNumber = 1LL << 53;

std::invalid_argument damaged(const std::string& got) { return refused("the file", "a whole safetensors file", got); }

std::int64_t bytes_of_dtype(const std::string& dtype) {
    if (dtype == "I64" || dtype == "F64") return 8;
    if (dtype == "F32") return 4;
    if (dtype == "BF16") return 2;
    if (dtype == "I8") return 1;
    throw damaged("numbers of the kind '" + dtype + "'");
}

// Reads the JSON of a header: objects of strings, whole numbers, lists of them, and objects two levels deep. Strings are
// UTF-8; characters beyond ASCII are not escaped.
class Header {
public:
    Header(const char* at, const char* end) : at_(at), end_(end) {}

    // Calls member(key) for each member of an object; no key comes twice.
    template <class Member>
    void object(const Member& member) {
        std::set<std::string> seen;
        list('{', '}', [&] {
            const std::string key = string();
            if (!seen.insert(key).second) throw damaged("the name '" + key + "' twice");
            expect(':');
            member(key);
        });
    }

    Shape numbers() {
        Shape several;
        list('[', ']', [&] { several.push_back(number()); });
        return several;
    }

    std::string string() {
        expect('"');
        std::string text;
        for (char c = next(); c != '"'; c = next()) text += c == '\\' ? escaped() : c;
        return text;
    }

    void finish() {
        skip_space();
        if (at_ != end_) throw damaged("more behind the header");
    }

private:
    char next() {
        if (at_ == end_) throw damaged("a header that ends too early");
        return *at_++;
    }

    void skip_space() {
        while (at_ != end_ && (*at_ == ' ' || *at_ == '\t' || *at_ == '\n' || *at_ == '\r')) ++at_;
    }

    bool take(char c) {
        skip_space();
        if (at_ == end_ || *at_ != c) return false;
        ++at_;
        return true;
    }

    void expect(char c) {
        if (!take(c)) throw damaged(std::string("a header without a '") + c + "' where one belongs");
    }

    template <class Item>
    void list(char opens, char closes, const Item& item) {
        expect(opens);
        if (take(closes)) return;
        do item();
        while (take(','));
        expect(closes);
    }

    std::int64_t number() {
        skip_space();
        std::uint64_t value = 0;
        const auto [end, error] = std::from_chars(at_, end_, value);
        if (error != std::errc() || value > kMostNumber)
            throw damaged("a header without a number up to 2^53 in its place");
        at_ = end;
        return static_cast<std::int64_t>(value);
    }

    // The character behind a backslash.
    char escaped() {
        static const char names[] = "\"\\/bfnrt", meant[] = "\"\\/\b\f\n\r\t";
        const char c = next();
        if (const char* const name = c == '\0' ? nullptr : std::strchr(names, c)) return meant[name - names];
        std::string code;
        while (c == 'u' && code.size() < 4) code += next();
        const char* const end = code.data() + code.size();
        unsigned value = 0x80;
        if (std::from_chars(code.data(), end, value, 16).ptr != end || value >= 0x80) {
            throw damaged("a wrong escape, or one of a character beyond ASCII");
        }
        return static_cast<char>(value);
    }

    const char* at_;
    const char* const end_;
};

std::string in_words(const Shape& shape) {
    std::string words = "[";
    for (std::size_t i = 0; i < shape.size(); ++i) words += (i ? ", " : "") + std::to_string(shape[i]);
    return words + "]";
}

// The tensor that a member of the header describes, in the bytes behind the header.
FileTensor read_tensor(Header& header, const std::string& name, const char* data, std::int64_t size) {
    FileTensor tensor{"", {}, nullptr, 0};
    Shape offsets;
    header.object([&](const std::string& key) {
        if (key == "dtype") {
            tensor.dtype = header.string();
        } else if (key == "shape") {
            tensor.shape = header.numbers();
        } else if (key == "data_offsets") {
            offsets = header.numbers();
        } else {
            throw damaged("a tensor with the key '" + key + "'");
        }
    });
    if (offsets.size() != 2 || offsets[0] > offsets[1] || offsets[1] > size) {
        throw damaged("'" + name + "' outside of the file");
    }
    const std::int64_t item = bytes_of_dtype(tensor.dtype);
    std::int64_t elements = 1;
    for (const std::int64_t dim : tensor.shape) {
        if (dim > 0 && elements > kMostNumber / dim) throw damaged("'" + name + "' of shape " + in_words(tensor.shape));
        elements *= dim;
    }
    tensor.data = data + offsets[0];
    tensor.bytes = offsets[1] - offsets[0];
    if (elements * item != tensor.bytes) {
        throw damaged("'" + name + "' of shape " + in_words(tensor.shape) + " in " + std::to_string(tensor.bytes) +
                      " bytes");
    }
    const bool is_aligned = reinterpret_cast<std::uintptr_t>(tensor.data) % static_cast<std::uintptr_t>(item) == 0;
    if (item >= 4 && elements > 0 && !is_aligned) {
        throw refused("'" + name + "'", "a place that is a multiple of its numbers' bytes", "another");
    }
    return tensor;
}

std::string quoted(const std::string& text) {
    std::string json = "\"";
    for (const char c : text) {
        if (c == '"' || c == '\\') {
            json += '\\', json += c;
        } else if (static_cast<unsigned char>(c) < 0x20) {
            static const char digits[] = "0123456789abcdef";
            json += "\\u00", json += digits[c >> 4], json += digits[c & 15];
        } else {
            json += c;
        }
    }
    return json + '"';
}

}  // namespace

TensorFile read_tensors(const void* bytes, std::int64_t size) {
    const char* const start = static_cast<const char*>(bytes);
    if (start == nullptr || size < 8) throw damaged("fewer than 8 bytes");
    std::uint64_t length = 0;
    for (int i = 7; i >= 0; --i) length = length << 8 | static_cast<unsigned char>(start[i]);
    if (length > static_cast<std::uint64_t>(std::min(kMostHeader, size - 8))) {
        throw damaged("another kind of file");
    }
    const char* const data = start + 8 + length;
    const std::int64_t room = start + size - data;
    Header header(start + 8, data);
    TensorFile content;
    std::int64_t taken = 0;
    header.object([&](const std::string& name) {
        if (name == "__metadata__") {
            header.object([&](const std::string& key) { content.metadata[key] = header.string(); });
        } else {
            taken += (content.tensors[name] = read_tensor(header, name, data, room)).bytes;
        }
    });
    header.finish();
    if (taken > room) throw damaged("tensors that share bytes");
    return content;
}

std::vector<char> write_tensors(const TensorFile& content) {
    std::string header = "{\"__metadata__\":{";
    for (const auto& [key, value] : content.metadata) {
        if (header.back() != '{') header += ',';
        header += quoted(key) + ':' + quoted(value);
    }
    header += '}';
    std::vector<const FileTensor*> ordered;
    std::int64_t end = 0;
    for (const int item : {8, 4, 2, 1}) {  // so that all are aligned
        for (const auto& [name, tensor] : content.tensors) {
            if (bytes_of_dtype(tensor.dtype) != item) continue;
            const Shape offsets{end, end + tensor.bytes};
            header += ',' + quoted(name) + ":{\"dtype\":" + quoted(tensor.dtype) +
                      ",\"shape\":" + in_words(tensor.shape) + ",\"data_offsets\":" + in_words(offsets) + '}';
            ordered.push_back(&tensor);
            end += tensor.bytes;
        }
    }
    header += '}';
    header.append((8 - header.size() % 8) % 8, ' ');
    std::vector<char> file;
    file.reserve(8 + header.size() + static_cast<std::size_t>(end));
    for (std::uint64_t i = 0, length = header.size(); i < 8; ++i) file.push_back(static_cast<char>(length >> 8 * i));
    file.insert(file.end(), header.begin(), header.end());
    for (const FileTensor* tensor : ordered) file.insert(file.end(), tensor->data, tensor->data + tensor->bytes);
    return file;
}

const FileTensor& find_tensor(const TensorFile& file, const std::string& name, const char* dtype, const Shape& shape) {
    const auto place = file.tensors.find(name);
    const bool is_there = place != file.tensors.end();
    if (is_there && place->second.dtype == dtype && place->second.shape == shape) return place->second;
    throw refused("'" + name + "'", dtype + (' ' + in_words(shape)),
                  is_there ? place->second.dtype + ' ' + in_words(place->second.shape) : "none");
}

const std::string& find_text(const Metadata& metadata, const std::string& name) {
    static const std::string none;
    const auto place = metadata.find(name);
    return place == metadata.end() ? none : place->second;
}

}  // namespace linattn
