// Stands for HierarchicalKV and CUDA's run-time, on the host: what bench/rows/hkv.cu calls of them, so that it runs without a GPU.
#pragma once
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <unordered_map>
#include <vector>

using cudaError_t = int;
using cudaStream_t = int*;
enum { cudaSuccess, cudaMemcpyHostToDevice, cudaMemcpyDeviceToHost };
struct cudaDeviceProp {
    char name[16];
};

inline const char* cudaGetErrorString(cudaError_t) { return "an error"; }
template <class T>
cudaError_t cudaMalloc(T** memory, size_t size) {
    *memory = static_cast<T*>(malloc(size));
    return cudaSuccess;
}
inline cudaError_t cudaFree(void* memory) {
    free(memory);
    return cudaSuccess;
}
inline cudaError_t cudaMemcpy(void* to, const void* from, size_t size, int) {
    memcpy(to, from, size);
    return cudaSuccess;
}
inline cudaError_t cudaStreamCreate(cudaStream_t* stream) {
    *stream = new int(0);
    return cudaSuccess;
}
inline cudaError_t cudaStreamDestroy(cudaStream_t stream) {
    delete stream;
    return cudaSuccess;
}
inline cudaError_t cudaStreamSynchronize(cudaStream_t) { return cudaSuccess; }
inline cudaError_t cudaGetDeviceProperties(cudaDeviceProp* device, int) {
    strcpy(device->name, "a stand-in");
    return cudaSuccess;
}

namespace nv::merlin {

struct EvictStrategy {
    enum { kLru };
};

struct HashTableOptions {
    size_t init_capacity = 0, max_capacity = 0, max_hbm_for_vectors = 0, dim = 64;
};

template <class K, class V, class S, int strategy>
class HashTable {
   public:
    void init(const HashTableOptions& options) { options_ = options; }
    size_t capacity() const { return options_.max_capacity; }
    size_t size(cudaStream_t) const { return rows_.size(); }

    void insert_or_assign(size_t count, const K* keys, const V* values, const S*, cudaStream_t) {
        for (size_t i = 0; i < count; i++) rows_[keys[i]].assign(values + i * options_.dim, values + (i + 1) * options_.dim);
    }

    void find(size_t count, const K* keys, V* values, bool* found, S*, cudaStream_t) const {
        for (size_t i = 0; i < count; i++) {
            const auto row = rows_.find(keys[i]);
            found[i] = row != rows_.end();
            if (found[i]) memcpy(values + i * options_.dim, row->second.data(), options_.dim * sizeof(V));
            if (WRONG && found[i]) values[i * options_.dim] += 1;
        }
    }

   private:
    HashTableOptions options_;
    std::unordered_map<K, std::vector<V>> rows_;
};

}  // namespace nv::merlin
