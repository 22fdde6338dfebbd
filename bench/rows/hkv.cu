// Times HierarchicalKV, a hash table of vectors in a GPU's memory, as the benchmark of rows asks for it.
//
// Usage: hkv DIM ROWS BATCH RUNS SECONDS. ROWS rows of DIM float32 lie in a table that has room for twice as many, once with all
// values in the GPU's memory and once in the host's. A call finds or assigns BATCH distinct keys, all of them there, and ends when
// the GPU has done it; a run is as many calls as take SECONDS, three at least. Each batch is another one. The last line of stdout
// is JSON; steps go to stderr.
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "merlin_hashtable.cuh"

namespace {

using Key = uint64_t;
using Table = nv::merlin::HashTable<Key, float, uint64_t, nv::merlin::EvictStrategy::kLru>;
using Clock = std::chrono::steady_clock;

constexpr int BATCHES = 8, CALLS_MIN = 3, WARM_UP = 12;  // it chooses a kernel by the load every few calls

void require(bool is_right, const std::string& what) {
    if (is_right) return;
    fprintf(stderr, "hkv: %s\n", what.c_str());
    exit(1);
}

void require_done(cudaError_t status, const char* what) {
    require(status == cudaSuccess, std::string(what) + ": " + cudaGetErrorString(status));
}

// A bijection: keys are distinct, and look random. Small numbers give none that the table reserves, which are the highest ones.
Key key_of(uint64_t number) {
    number = (number ^ number >> 30) * 0xBF58476D1CE4E5B9ull;
    number = (number ^ number >> 27) * 0x94D049BB133111EBull;
    return number ^ number >> 31;
}

template <class T>
class OnDevice {
   public:
    explicit OnDevice(size_t count) : count_(count) { require_done(cudaMalloc(&data_, count * sizeof(T)), "cudaMalloc"); }
    ~OnDevice() { cudaFree(data_); }
    OnDevice(const OnDevice&) = delete;
    OnDevice& operator=(const OnDevice&) = delete;
    T* get() const { return data_; }
    void put(const T* from, size_t count) {
        require_done(cudaMemcpy(data_, from, count * sizeof(T), cudaMemcpyHostToDevice), "a copy to the GPU");
    }
    std::vector<char> bytes() const {
        std::vector<char> host(count_ * sizeof(T));
        require_done(cudaMemcpy(host.data(), data_, host.size(), cudaMemcpyDeviceToHost), "a copy from the GPU");
        return host;
    }

   private:
    T* data_ = nullptr;
    size_t count_;
};

class Stream {
   public:
    Stream() { require_done(cudaStreamCreate(&stream_), "cudaStreamCreate"); }
    ~Stream() { cudaStreamDestroy(stream_); }
    Stream(const Stream&) = delete;
    Stream& operator=(const Stream&) = delete;
    operator cudaStream_t() const { return stream_; }

   private:
    cudaStream_t stream_ = nullptr;
};

struct Sizes {
    size_t dim, rows, batch, runs;
    double seconds;
};

// The row of a key: the number of the key, in each element.
std::vector<float> rows_of(const std::vector<uint64_t>& numbers, size_t dim) {
    std::vector<float> rows;
    rows.reserve(numbers.size() * dim);
    for (uint64_t number : numbers) rows.insert(rows.end(), dim, float(number & 0xFFFFFF));
    return rows;
}

class Bench {
   public:
    Bench(const Sizes& sizes, bool is_on_host)
        : sizes_(sizes), values_(sizes.batch * sizes.dim), out_(sizes.batch * sizes.dim), found_(sizes.batch) {
        nv::merlin::HashTableOptions options;
        options.init_capacity = 1;
        while (options.init_capacity < 2 * sizes.rows || options.init_capacity < 1024) options.init_capacity *= 2;
        options.max_capacity = options.init_capacity;
        options.dim = sizes.dim;
        options.max_hbm_for_vectors = is_on_host ? 0 : 2 * options.init_capacity * sizes.dim * sizeof(float);
        table_.init(options);
        load();
        draw();
        check();
    }

    size_t capacity() const { return table_.capacity(); }

    // Runs of both tasks, one after the other: the calls and seconds of each.
    void run(std::string* finds, std::string* inserts) {
        for (int call = 0; call < WARM_UP; call++) find(), insert();
        for (size_t number = 0; number < sizes_.runs; number++) {
            *finds += (number ? ", " : "") + timed([this] { find(); });
            *inserts += (number ? ", " : "") + timed([this] { insert(); });
        }
    }

   private:
    void load() {
        OnDevice<Key> keys(sizes_.batch);
        for (size_t first = 0; first < sizes_.rows; first += sizes_.batch) {
            std::vector<uint64_t> numbers(std::min(sizes_.batch, sizes_.rows - first));
            std::iota(numbers.begin(), numbers.end(), first);
            const std::vector<float> rows = rows_of(numbers, sizes_.dim);
            std::vector<Key> given;
            for (uint64_t number : numbers) given.push_back(key_of(number));
            keys.put(given.data(), given.size());
            values_.put(rows.data(), rows.size());
            table_.insert_or_assign(given.size(), keys.get(), values_.get(), nullptr, stream_);
            wait();
        }
        const size_t held = table_.size(stream_);
        require(held == sizes_.rows, std::to_string(held) + " rows are there, of " + std::to_string(sizes_.rows));
    }

    void draw() {
        std::mt19937_64 random(1);
        std::vector<uint64_t> numbers(sizes_.rows);
        std::iota(numbers.begin(), numbers.end(), 0);
        for (int batch = 0; batch < BATCHES; batch++) {
            for (size_t at = 0; at < sizes_.batch; at++) std::swap(numbers[at], numbers[at + random() % (sizes_.rows - at)]);
            std::vector<Key> given;
            for (size_t at = 0; at < sizes_.batch; at++) given.push_back(key_of(numbers[at]));
            keys_.push_back(std::make_unique<OnDevice<Key>>(sizes_.batch));
            keys_.back()->put(given.data(), given.size());
            if (batch == 0) first_ = std::vector<uint64_t>(numbers.begin(), numbers.begin() + sizes_.batch);
        }
    }

    // A table that returns wrong rows is not worth timing.
    void check() {
        turn_ = 0;
        find();
        const std::vector<char> found = found_.bytes(), out = out_.bytes();
        const std::vector<float> wanted = rows_of(first_, sizes_.dim);
        require(std::count(found.begin(), found.end(), 1) == std::ptrdiff_t(sizes_.batch), "a key that was stored is not found");
        require(std::equal(out.begin(), out.end(), reinterpret_cast<const char*>(wanted.data())), "it returns wrong rows");
    }

    const Key* next() { return keys_[turn_++ % BATCHES]->get(); }

    void find() {
        table_.find(sizes_.batch, next(), out_.get(), found_.get(), nullptr, stream_);
        wait();
    }

    void insert() {
        table_.insert_or_assign(sizes_.batch, next(), values_.get(), nullptr, stream_);
        wait();
    }

    void wait() { require_done(cudaStreamSynchronize(stream_), "a call"); }

    template <class Call>
    std::string timed(Call call) {
        double seconds = 0;
        int calls = 0;
        while (seconds < sizes_.seconds || calls < CALLS_MIN) {
            const auto begin = Clock::now();
            call();
            seconds += std::chrono::duration<double>(Clock::now() - begin).count();
            calls++;
        }
        char text[64];
        snprintf(text, sizeof text, "[%d, %.9f]", calls, seconds);
        return text;
    }

    const Sizes sizes_;
    Stream stream_;  // before the table, which uses it to the end
    Table table_;
    OnDevice<float> values_, out_;
    OnDevice<bool> found_;
    std::vector<std::unique_ptr<OnDevice<Key>>> keys_;
    std::vector<uint64_t> first_;
    size_t turn_ = 0;
};

}  // namespace

int main(int count, char** words) {
    require(count == 6, "usage: hkv DIM ROWS BATCH RUNS SECONDS");
    const Sizes sizes{strtoull(words[1], nullptr, 10), strtoull(words[2], nullptr, 10), strtoull(words[3], nullptr, 10),
                      strtoull(words[4], nullptr, 10), strtod(words[5], nullptr)};
    require(sizes.dim && sizes.batch && sizes.runs && sizes.batch <= sizes.rows, "sizes are at least 1, and BATCH at most ROWS");
    cudaDeviceProp device;
    require_done(cudaGetDeviceProperties(&device, 0), "the GPU");
    std::string text = "{\"device\": \"" + std::string(device.name) + "\"";
    for (const bool is_on_host : {false, true}) {
        const char* where = is_on_host ? "host" : "gpu";
        fprintf(stderr, "dim %zu, values in the memory of the %s\n", sizes.dim, where);
        Bench bench(sizes, is_on_host);
        std::string finds, inserts;
        bench.run(&finds, &inserts);
        text += ", \"" + std::string(where) + "\": {\"capacity\": " + std::to_string(bench.capacity()) + ", \"find\": [" + finds +
                "], \"insert_or_assign\": [" + inserts + "]}";
    }
    printf("%s}\n", text.c_str());
}
