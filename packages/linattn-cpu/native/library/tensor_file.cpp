#include "library/tensor_file.hpp"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>
#include <set>
#include <utility>

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
static std::string readable(const std::string& words) {
    constexpr std::size_t kMost = 200;
    std::string plain = words.size() > kMost ? words.substr(0, kMost) + "..." : words;
    const auto is_control = [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7F; };
    std::replace_if(plain.begin(), plain.end(), is_control, '?');
    return plain;
}

Refused refused(const std::string& what, const std::string& wanted, const std::string& got) {
    return Refused(readable(what) + ": expected " + readable(wanted) + ", got " + readable(got) + ".");
}

std::string in_words(const Shape& shape) {
    std::string words = "[";
    for (std::size_t i = 0; i < shape.size(); ++i) words += (i ? ", " : "") + std::to_string(shape[i]);
    return words + "]";
}

namespace {

constexpr std::int64_t kMostHeader = 100'000'000;  // the format's own limit
constexpr std::int64_t kMostNumber = std::int64_t{1} << 53;

Refused damaged(const std::string& got) { return refused("the file", "a whole safetensors file", got); }

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
    Header(const char* at, std::int64_t size) : at_(at), end_(at + size) {}

    // Calls member(key) for each member of an object; no key comes twice.
    template <class Member>
    void object(const Member& member) {
        std::set<std::string> seen;
        expect('{');
        if (take('}')) return;
        do {
            const std::string key = string();
            if (!seen.insert(key).second) throw damaged("the name '" + key + "' twice");
            expect(':');
            member(key);
        } while (take(','));
        expect('}');
    }

    Shape numbers() {
        Shape several;
        expect('[');
        if (take(']')) return several;
        do several.push_back(number());
        while (take(','));
        expect(']');
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

    std::int64_t number() {
        skip_space();
        std::int64_t value = 0;
        const char* const first = at_;
        while (at_ != end_ && *at_ >= '0' && *at_ <= '9') {
            value = value * 10 + (*at_++ - '0');
            if (value > kMostNumber) throw damaged("a number above 2^53");
        }
        if (at_ == first) throw damaged("a header without a number where one belongs");
        return value;
    }

    // The character behind a backslash.
    char escaped() {
        static const char names[] = "\"\\/bfnrt", meant[] = "\"\\/\b\f\n\r\t", digits[] = "0123456789abcdefABCDEF";
        const char c = next();
        if (const char* const name = c == '\0' ? nullptr : std::strchr(names, c)) return meant[name - names];
        std::string code;
        while (c == 'u' && code.size() < 4) code += next();
        const bool known = code.compare(0, 2, "00") == 0 && code.find_first_not_of(digits) == std::string::npos;
        const long value = known ? std::strtol(code.c_str(), nullptr, 16) : 0x80;
        if (value >= 0x80) throw damaged("a wrong escape, or one of a character beyond ASCII");
        return static_cast<char>(value);
    }

    const char* at_;
    const char* const end_;
};

// The tensor that a member of the header describes, in the bytes behind the header.
FileTensor read_tensor(Header& header, const std::string& name, const char* data, std::int64_t size) {
    FileTensor tensor{"", {}, nullptr, 0};
    Shape offsets;
    int members = 0;
    header.object([&](const std::string& key) {
        ++members;
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
    if (members != 3 || offsets.size() != 2 || offsets[0] > offsets[1] || offsets[1] > size) {
        throw damaged("'" + name + "' outside of the file");
    }
    const std::int64_t item = bytes_of_dtype(tensor.dtype);
    tensor.bytes = offsets[1] - offsets[0];
    std::int64_t elements = 1;
    for (const std::int64_t dim : tensor.shape) {
        if (dim > 0 && elements > kMostNumber / dim) throw damaged("'" + name + "' of shape " + in_words(tensor.shape));
        elements *= dim;
    }
    if (elements != tensor.bytes / item || tensor.bytes % item != 0) {
        throw damaged("'" + name + "' of shape " + in_words(tensor.shape) + " in " + std::to_string(tensor.bytes) +
                      " bytes");
    }
    tensor.data = data + offsets[0];
    if (elements > 0 && item >= 4 &&
        reinterpret_cast<std::uintptr_t>(tensor.data) % static_cast<std::uintptr_t>(item)) {
        throw refused("'" + name + "'", "a place that is a multiple of its numbers' bytes", "another");
    }
    return tensor;
}

}  // namespace

TensorFile read_tensors(const void* bytes, std::int64_t size) {
    const char* const start = static_cast<const char*>(bytes);
    if (start == nullptr || size < 8) throw damaged("fewer than 8 bytes");
    std::uint64_t length = 0;
    for (int i = 7; i >= 0; --i) length = length << 8 | static_cast<unsigned char>(start[i]);
    if (length > static_cast<std::uint64_t>(kMostHeader) || static_cast<std::int64_t>(length) > size - 8) {
        throw damaged("a header of " + std::to_string(length) + " bytes");
    }
    const auto header_size = static_cast<std::int64_t>(length);
    Header header(start + 8, header_size);
    TensorFile content;
    header.object([&](const std::string& name) {
        if (name == "__metadata__") {
            header.object([&](const std::string& key) { content.metadata[key] = header.string(); });
        } else {
            content.tensors[name] = read_tensor(header, name, start + 8 + header_size, size - 8 - header_size);
        }
    });
    header.finish();
    std::int64_t taken = 0;
    for (const auto& each : content.tensors) taken += each.second.bytes;
    if (taken > size - 8 - header_size) throw damaged("tensors that share bytes");
    return content;
}

static std::string quoted(const std::string& text) {
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

std::vector<char> write_tensors(const TensorFile& content) {
    std::string header = "{\"__metadata__\":{";
    for (const auto& [key, value] : content.metadata) {
        if (header.back() != '{') header += ',';
        header += quoted(key) + ':' + quoted(value);
    }
    header += '}';
    std::vector<const std::pair<const std::string, FileTensor>*> ordered;
    for (const auto& each : content.tensors) ordered.push_back(&each);
    std::stable_sort(ordered.begin(), ordered.end(), [](const auto* a, const auto* b) {  // so that all are aligned
        return bytes_of_dtype(a->second.dtype) > bytes_of_dtype(b->second.dtype);
    });
    std::int64_t offset = 0;
    for (const auto* each : ordered) {
        const auto& [name, tensor] = *each;
        const std::int64_t end = offset + tensor.bytes;
        header += ',' + quoted(name) + ":{\"dtype\":" + quoted(tensor.dtype) + ",\"shape\":" + in_words(tensor.shape) +
                  ",\"data_offsets\":[" + std::to_string(offset) + ',' + std::to_string(end) + "]}";
        offset = end;
    }
    header += '}';
    header.append((8 - header.size() % 8) % 8, ' ');
    std::vector<char> file(8 + header.size() + static_cast<std::size_t>(offset));
    for (int i = 0; i < 8; ++i) file[static_cast<std::size_t>(i)] = static_cast<char>(header.size() >> (8 * i) & 255);
    char* at = file.data() + 8;
    std::memcpy(at, header.data(), header.size());
    at += header.size();
    for (const auto* each : ordered) {
        const FileTensor& tensor = each->second;
        if (tensor.bytes > 0) std::memcpy(at, tensor.data, static_cast<std::size_t>(tensor.bytes));
        at += tensor.bytes;
    }
    return file;
}

}  // namespace linattn
