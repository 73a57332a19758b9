// A safetensors file in memory: tensors and metadata by name. Files are not trusted: what is wrong is refused.
#pragma once

#include <cstdint>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

namespace linattn {

// Why the last failure of this thread happened.
std::string& last_error();

// Makes `last_error` the sentence of an exception.
void keep(const std::exception& error);

std::invalid_argument refused(const std::string& what, const std::string& wanted, const std::string& got);

using Metadata = std::map<std::string, std::string>;
using Shape = std::vector<std::int64_t>;

struct FileTensor {
    std::string dtype;  // as the format spells it, such as F32
    Shape shape;
    const char* data;  // in the bytes that were read
    std::int64_t bytes;
};

struct TensorFile {
    std::map<std::string, FileTensor> tensors;
    Metadata metadata;
};

// The content of `bytes`, which must live as long as the tensors are used. The size of each tensor is that of its shape,
// and numbers of 4 and 8 bytes are aligned.
TensorFile read_tensors(const void* bytes, std::int64_t size);

// The bytes of a file with this content.
std::vector<char> write_tensors(const TensorFile& content);

// The tensor of a name; refuses another dtype or shape.
const FileTensor& find_tensor(const TensorFile& file, const std::string& name, const char* dtype, const Shape& shape);

// The text of a name; "" if there is none.
const std::string& find_text(const Metadata& metadata, const std::string& name);

}  // namespace linattn
