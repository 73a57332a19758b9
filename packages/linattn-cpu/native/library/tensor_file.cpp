#include "library/tensor_file.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

namespace linattn {

std::string& last_error() {
    thread_local std::string sentence;
    return sentence;
}

namespace {

constexpr std::size_t kMostWords = 200;

// Words of a file may have any length, and what a terminal obeys.
std::string readable(const std::string& words) {
    std::string plain = words.size() > kMostWords ? words.substr(0, kMostWords) + "..." : words;
    const auto is_control = [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7F; };
    std::replace_if(plain.begin(), plain.end(), is_control, '?');
    return plain;
}

}  // namespace

Refused refused(const std::string& what, const std::string& wanted, const std::string& got) {
    return Refused(last_error() = readable(what) + ": expected " + readable(wanted) + ", got " + readable(got) + ".");
}

std::string in_words(const Shape& shape) {
    std::string words = "(";
    for (std::size_t i = 0; i < shape.size(); ++i) words += (i ? ", " : "") + std::to_string(shape[i]);
    return words + (shape.size() == 1 ? ",)" : ")");
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

// Reads the JSON of a header: objects of strings, whole numbers, lists of them, and objects two levels deep.
class Header {
public:
    Header(const char* at, std::int64_t size) : at_(at), end_(at + size) {}

    // Calls member(key) for each member of an object; no key comes twice.
    template <class Member>
    void object(const Member& member) {
        std::map<std::string, bool> seen;
        expect('{');
        if (take('}')) return;
        do {
            const std::string key = string();
            if (!seen.emplace(key, true).second) throw damaged("the name '" + key + "' twice");
            expect(':');
            member(key);
        } while (take(','));
        expect('}');
    }

    Shape numbers() {
        Shape several;
        expect('[');
        if (take(']')) return several;
        do {
            several.push_back(number());
        } while (take(','));
        expect(']');
        return several;
    }

    std::string string() {
        expect('"');
        std::string text;
        for (;;) {
            const char c = next();
            if (c == '"') return text;
            if (c != '\\') {
                text += c;
            } else {
                escape(text);
            }
        }
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

    std::uint32_t hexadecimal() {
        std::uint32_t value = 0;
        for (int i = 0; i < 4; ++i) {
            const char c = next();
            const int digit = c >= '0' && c <= '9'   ? c - '0'
                              : c >= 'a' && c <= 'f' ? c - 'a' + 10
                              : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                                     : -1;
            if (digit < 0) throw damaged("a wrong escape");
            value = value * 16 + static_cast<std::uint32_t>(digit);
        }
        return value;
    }

    void escape(std::string& text) {
        static const char names[] = "\"\\/bfnrt", meant[] = "\"\\/\b\f\n\r\t";
        const char c = next();
        if (const char* name = c == '\0' ? nullptr : std::strchr(names, c)) {
            text += meant[name - names];
            return;
        }
        if (c != 'u') throw damaged("a wrong escape");
        std::uint32_t code = hexadecimal();
        if (code >= 0xD800 && code < 0xDC00) {  // the first half of a pair
            if (next() != '\\' || next() != 'u') throw damaged("half of a surrogate pair");
            const std::uint32_t low = hexadecimal();
            if (low < 0xDC00 || low > 0xDFFF) throw damaged("half of a surrogate pair");
            code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
        } else if (code >= 0xDC00 && code < 0xE000) {
            throw damaged("half of a surrogate pair");
        }
        append_utf8(text, code);
    }

    static void append_utf8(std::string& text, std::uint32_t code) {
        const auto byte = [&](std::uint32_t value) { text += static_cast<char>(value); };
        if (code < 0x80) return byte(code);
        if (code < 0x800) return byte(0xC0 | code >> 6), byte(0x80 | (code & 63));
        if (code < 0x10000) return byte(0xE0 | code >> 12), byte(0x80 | (code >> 6 & 63)), byte(0x80 | (code & 63));
        byte(0xF0 | code >> 18), byte(0x80 | (code >> 12 & 63)), byte(0x80 | (code >> 6 & 63)),
            byte(0x80 | (code & 63));
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

namespace {

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

// The largest numbers first, so that all are aligned.
std::vector<const std::pair<const std::string, FileTensor>*> by_size(const TensorFile& content) {
    std::vector<const std::pair<const std::string, FileTensor>*> ordered;
    for (const auto& each : content.tensors) ordered.push_back(&each);
    std::stable_sort(ordered.begin(), ordered.end(), [](const auto* a, const auto* b) {
        return bytes_of_dtype(a->second.dtype) > bytes_of_dtype(b->second.dtype);
    });
    return ordered;
}

}  // namespace

std::vector<char> write_tensors(const TensorFile& content) {
    std::string header = "{\"__metadata__\":{";
    for (const auto& [key, value] : content.metadata) {
        if (header.back() != '{') header += ',';
        header += quoted(key) + ':' + quoted(value);
    }
    header += '}';
    std::int64_t offset = 0;
    const auto ordered = by_size(content);
    for (const auto* each : ordered) {
        const auto& [name, tensor] = *each;
        std::string shape = in_words(tensor.shape);
        if (tensor.shape.size() == 1) shape.erase(shape.size() - 2, 1);  // the comma
        shape.front() = '[', shape.back() = ']';
        const std::int64_t end = offset + tensor.bytes;
        header += ',' + quoted(name) + ":{\"dtype\":" + quoted(tensor.dtype) + ",\"shape\":" + shape +
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
