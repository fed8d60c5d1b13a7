// A CUDA device in host memory, for a CPU build of torch: what runs on it takes the branches that a card takes.
//
// Every operator of dispatch key CUDA runs the CPU's kernel on host tensors that share the memory of its arguments.
// Reads and blocking copies count as waits, and are refused in sync-debug mode "error" and while a graph is recorded.
// A recording keeps the operators of its stream; a replay runs them again on the same memory, as a CUDA graph does.

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include <atomic>
#include <chrono>
#include <map>
#include <mutex>
#include <set>
#include <thread>
#include <unordered_map>

namespace {

using at::Tensor;
using c10::IValue;
using torch::jit::Stack;
const c10::Device HOST(c10::DeviceType::CPU), CARD(c10::DeviceType::CUDA, 0);
const c10::DispatchKeySet ON_HOST(c10::DispatchKey::CPU);

// ------------------------------------------------------------------------------------------------ memory and streams

std::atomic<int64_t> used{0}, most_used{0}, limit{INT64_MAX};

void count(int64_t bytes) {
  int64_t now = used += bytes, most = most_used;
  if (bytes > 0 && now > limit) {
    used -= bytes;
    TORCH_CHECK_WITH(OutOfMemoryError, false, "CUDA out of memory. Tried to allocate ", bytes, " bytes.");
  }
  while (now > most && !most_used.compare_exchange_weak(most, now)) {
  }
}

struct Held { // host memory that device memory stands on
  c10::Storage host;
  int64_t bytes;
};

c10::DataPtr on_card(c10::Storage host) {
  int64_t bytes = host.nbytes();
  void* data = host.mutable_data();
  count(bytes);
  return {data, new Held{std::move(host), bytes}, [](void* held) {
    count(-static_cast<Held*>(held)->bytes);
    delete static_cast<Held*>(held);
  }, CARD};
}

c10::Storage host_memory(size_t bytes) {
  return {c10::Storage::use_byte_size_t(), bytes, c10::GetCPUAllocator()->allocate(bytes), c10::GetCPUAllocator(), true};
}

struct CardMemory final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override { return on_card(host_memory(bytes)); }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { std::memcpy(to, from, bytes); }
} card_memory;

thread_local int64_t stream = 0;
std::atomic<int64_t> streams{0};

// --------------------------------------------------------------------------------------------------- waits, recordings

struct Call { // one operator of a recording, on host tensors; memory: what they share, so that it stays
  c10::OperatorHandle of;
  Stack inputs, outputs;
  std::vector<c10::Storage> memory;
};

std::mutex lock;
std::map<std::string, int64_t> waits;
std::atomic<int> sync_debug{0};
std::vector<std::vector<Call>> recordings;
std::map<c10::StorageImpl*, std::pair<c10::Storage, std::string>> before; // what the recording at hand has written to
// Of the recording at hand, -1: none.  pool: not ended after a recording, so that no memory may be given back.
std::atomic<int64_t> recording{-1}, recorded_stream{-1};
std::atomic<bool> invalid{false}, pool{false}, generator_waits{false}, refuses_other_threads{false};
std::thread::id recorder;

bool records() {
  return recording >= 0 && stream == recorded_stream;
}

void refuse_while_recording(const char* what) {
  if (recording < 0 || !(records() || std::this_thread::get_id() == recorder || refuses_other_threads)) return;
  invalid = true;
  TORCH_CHECK(false, "CUDA error: operation not permitted when stream is capturing (", what, ")");
}

void wait(const std::string& what) {
  {
    std::lock_guard<std::mutex> held(lock);
    ++waits[what];
  }
  refuse_while_recording(what.c_str());
  TORCH_CHECK(sync_debug != 2, "called a synchronizing CUDA operation");
  if (sync_debug == 1) TORCH_WARN("called a synchronizing CUDA operation");
}

// -------------------------------------------------------------------------------------------------- operators on the host

struct OnHost { // the arguments of one call as host tensors, and its results as device tensors
  std::unordered_map<c10::StorageImpl*, c10::Storage> hosts, cards; // by the storage of the other side
  std::unordered_map<c10::TensorImpl*, std::pair<Tensor, Tensor>> known; // by the host tensor: it, and the caller's
  std::unordered_map<c10::TensorImpl*, Tensor> seen;                     // by the caller's tensor
  std::unordered_map<c10::StorageImpl*, c10::DispatchKeySet> bases;      // of what a view is of, by its host's storage
  bool card_given = false, host_given = false;

  c10::Storage host(const c10::Storage& storage) {
    auto& made = hosts[storage.unsafeGetStorageImpl()];
    if (!made) {
      c10::DataPtr data(const_cast<void*>(storage.data()), HOST);
      made = {c10::Storage::use_byte_size_t(), storage.nbytes(), std::move(data), c10::GetCPUAllocator(), true};
      cards[made.unsafeGetStorageImpl()] = storage;
    }
    return made;
  }

  Tensor host(const Tensor& tensor) {
    if (!tensor.defined()) return tensor;
    auto* impl = tensor.unsafeGetTensorImpl();
    if (!tensor.is_cuda()) {
      host_given |= tensor.dim() > 0;
      known[impl] = {tensor, tensor};
      return tensor;
    }
    card_given = true;
    auto& made = seen[impl];
    if (!made.defined()) {
      made = like(tensor, host(tensor.storage()), ON_HOST);
      known[made.unsafeGetTensorImpl()] = {made, tensor};
      bases[made.storage().unsafeGetStorageImpl()] = impl->key_set();
    }
    return made;
  }

  IValue host(const IValue& value) {
    if (value.isTensor()) return host(value.toTensor());
    if (value.isTensorList()) {
      c10::List<Tensor> made;
      for (const Tensor& each : value.toTensorVector()) made.push_back(host(each));
      return made;
    }
    if (value.isOptionalTensorList()) {
      c10::List<std::optional<Tensor>> made;
      for (const std::optional<Tensor>& each : value.toOptionalTensorVector())
        made.push_back(each ? std::optional<Tensor>(host(*each)) : std::nullopt);
      return made;
    }
    if (value.isStorage()) return host(value.toStorage());
    if (value.isDevice()) return HOST;
    return value;
  }

  c10::Storage card(const c10::Storage& storage) {
    auto& made = cards[storage.unsafeGetStorageImpl()];
    if (!made) made = {c10::Storage::use_byte_size_t(), storage.nbytes(), on_card(storage), &card_memory, true};
    return made;
  }

  Tensor card(const Tensor& tensor) {
    if (!tensor.defined()) return tensor;
    auto found = known.find(tensor.unsafeGetTensorImpl());
    if (found != known.end()) return found->second.second;
    auto base = bases.find(tensor.storage().unsafeGetStorageImpl());
    if (base == bases.end()) return like(tensor, card(tensor.storage()), c10::DispatchKeySet(c10::DispatchKey::CUDA));
    auto impl = c10::make_intrusive<c10::TensorImpl>(
        c10::TensorImpl::VIEW, card(tensor.storage()), base->second, tensor.dtype());
    impl->set_sizes_and_strides(tensor.sizes(), tensor.strides(), tensor.storage_offset());
    return Tensor(std::move(impl));
  }

  IValue card(const IValue& value) {
    if (value.isTensor()) return card(value.toTensor());
    if (!value.isTensorList()) return value;
    c10::List<Tensor> made;
    for (const Tensor& each : value.toTensorVector()) made.push_back(card(each));
    return made;
  }

  // An operator may have given a tensor other memory, or another shape.
  void keep_changes() {
    for (auto& [caller, host] : seen) {
      auto* now = host.unsafeGetTensorImpl();
      c10::Storage storage = card(host.storage());
      if (storage.data() != host.storage().data()) {
        storage.set_data_ptr_noswap(on_card(host.storage()));
        storage.set_nbytes(host.storage().nbytes());
      }
      if (storage.unsafeGetStorageImpl() != caller->storage().unsafeGetStorageImpl()) caller->set_storage_keep_dtype(storage);
      if (now->sizes() != caller->sizes() || now->strides() != caller->strides() ||
          now->storage_offset() != caller->storage_offset())
        caller->set_sizes_and_strides(now->sizes(), now->strides(), now->storage_offset());
    }
  }

  static Tensor like(const Tensor& tensor, c10::Storage storage, c10::DispatchKeySet keys) {
    auto impl = c10::make_intrusive<c10::TensorImpl>(std::move(storage), keys, tensor.dtype());
    impl->set_sizes_and_strides(tensor.sizes(), tensor.strides(), tensor.storage_offset());
    if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) impl->set_wrapped_number(true);
    return Tensor(std::move(impl));
  }
};

const std::set<std::string> READ = {
    "aten::_local_scalar_dense", "aten::nonzero", "aten::masked_select", "aten::_unique2", "aten::unique_dim",
    "aten::equal", "aten::bincount", "aten::repeat_interleave"};
const std::set<std::string> TAKE_HOST_TENSORS = {"aten::copy_", "aten::index", "aten::index_put_", "aten::_index_put_impl_",
    "aten::set_"};

// What the operator asks of the host before it can go on.
void count_waits(const std::string& name, const std::vector<IValue>& given) {
  if (READ.count(name)) wait(name);
  if (name == "aten::copy_") {
    const Tensor &to = given[0].toTensor(), &from = given[1].toTensor();
    if (to.device() == from.device() || to.numel() == 0) return;
    if (!given[2].toBool()) return wait(to.is_cuda() ? "copy to the device" : "copy to the host");
    if (records() && !(to.is_cuda() ? from : to).is_pinned()) refuse_while_recording("a copy of pageable memory");
  }
  if (name.rfind("aten::index", 0) == 0 && given.size() > 1 && given[1].isOptionalTensorList())
    for (const std::optional<Tensor>& index : given[1].toOptionalTensorVector())
      if (index && index->defined() && (index->is_cpu() || index->scalar_type() == at::kBool || index->scalar_type() == at::kByte))
        wait(index->is_cpu() ? "copy to the device" : "aten::nonzero");
}

void run(const c10::OperatorHandle& of, c10::DispatchKeySet, Stack* stack) {
  const std::string& name = of.schema().name();
  const size_t arguments = of.schema().arguments().size(), results = of.schema().returns().size();
  std::vector<IValue> given = torch::jit::last(*stack, arguments).vec();
  torch::jit::drop(*stack, arguments);
  count_waits(name, given);
  bool random = name == "aten::native_dropout";
  for (const auto& argument : of.schema().arguments()) random |= argument.name() == "generator";
  TORCH_CHECK(!random || records() || !generator_waits, "Offset increment outside graph capture encountered unexpectedly.");

  OnHost host;
  Stack inputs;
  {
    c10::InferenceMode off(false);
    for (const IValue& value : given) inputs.push_back(host.host(value));
  }
  TORCH_CHECK(!host.card_given || !host.host_given || TAKE_HOST_TENSORS.count(name),
      "Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu! (", name, ")");
  if (records() && of.schema().is_mutable()) { // what is recorded does not happen
    std::lock_guard<std::mutex> held(lock);
    for (auto& [made, storage] : host.cards)
      before.try_emplace(storage.unsafeGetStorageImpl(), storage,
          std::string(static_cast<const char*>(storage.data()), storage.nbytes()));
  }
  Stack outputs = inputs;
  {
    c10::InferenceMode off(false);
    at::AutoDispatchBelowADInplaceOrView below;
    c10::impl::ExcludeDispatchKeyGuard uncast(c10::autocast_dispatch_keyset);
    of.redispatchBoxed(ON_HOST, &outputs);
  }
  host.keep_changes();
  if (records()) {
    std::vector<c10::Storage> memory;
    for (auto& [made, storage] : host.cards) memory.push_back(storage);
    std::lock_guard<std::mutex> held(lock);
    recordings[recording].push_back({of, inputs, outputs, std::move(memory)});
  }
  for (size_t i = 0; i < results; ++i) stack->push_back(host.card(outputs[i]));
}

void write_again(const IValue& now, const IValue& then) {
  if (now.isTensor() && then.toTensor().defined() && !now.toTensor().is_same(then.toTensor())) {
    if (now.toTensor().storage().data() != then.toTensor().storage().data()) then.toTensor().copy_(now.toTensor());
  } else if (now.isTensorList()) {
    auto news = now.toTensorVector(), olds = then.toTensorVector();
    for (size_t i = 0; i < news.size(); ++i) write_again(news[i], olds[i]);
  }
}

void replay(int64_t number) {
  c10::InferenceMode off(false);
  at::AutoDispatchBelowADInplaceOrView below;
  for (Call& call : recordings[number]) {
    if (call.of.schema().name().rfind("aten::empty", 0) == 0) continue;
    Stack stack = call.inputs;
    call.of.redispatchBoxed(ON_HOST, &stack);
    for (size_t out = 0; out < stack.size(); ++out) write_again(stack[out], call.outputs[out]);
  }
}

Tensor attention(const Tensor& query, const Tensor& key, const Tensor& value, const std::optional<Tensor>& mask,
    double dropout, bool causal, std::optional<double> scale, bool grouped) {
  return std::get<0>(at::_scaled_dot_product_attention_math(
      query, key, value, mask, dropout, causal, std::nullopt, scale, grouped));
}

std::tuple<Tensor, Tensor, Tensor> lstm_cell(const Tensor& input, const Tensor& hidden, const Tensor& cell,
    const std::optional<Tensor>& input_bias, const std::optional<Tensor>& hidden_bias) {
  Tensor gates = input + hidden;
  if (input_bias && input_bias->defined()) gates = gates + *input_bias;
  if (hidden_bias && hidden_bias->defined()) gates = gates + *hidden_bias;
  auto parts = gates.chunk(4, 1);
  Tensor next = parts[1].sigmoid() * cell + parts[0].sigmoid() * parts[2].tanh();
  return {parts[3].sigmoid() * next.tanh(), next, gates};
}

// ------------------------------------------------------------------------------------------------ what torch asks of CUDA

struct Guard final : c10::impl::DeviceGuardImplInterface {
  using Clock = std::chrono::steady_clock;
  c10::DeviceType type() const override { return c10::DeviceType::CUDA; }
  c10::Device exchangeDevice(c10::Device) const override { return CARD; }
  c10::Device getDevice() const override { return CARD; }
  void setDevice(c10::Device) const override {}
  void uncheckedSetDevice(c10::Device) const noexcept override {}
  static c10::Stream of(int64_t id) { return c10::Stream(c10::Stream::UNSAFE, CARD, id); }
  c10::Stream getStream(c10::Device) const override { return of(stream); }
  c10::Stream getDefaultStream(c10::Device) const override { return of(0); }
  c10::Stream getStreamFromGlobalPool(c10::Device, bool) const override { return of(++streams); }
  c10::Stream getNewStream(c10::Device, int) const override { return of(++streams); }
  c10::Stream exchangeStream(c10::Stream next) const override { return of(std::exchange(stream, next.id())); }
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }
  bool queryStream(const c10::Stream&) const override { return true; }
  bool isStreamCapturing(const c10::Stream& which) const override { return recording >= 0 && which.id() == recorded_stream; }
  void synchronizeStream(const c10::Stream&) const override { wait("synchronize"); }
  void synchronizeDevice(const c10::DeviceIndex) const override { refuse_while_recording("synchronize"); }
  void record(void** event, const c10::Stream&, const c10::DeviceIndex, const c10::EventFlag) const override {
    if (!*event) *event = new Clock::time_point;
    *static_cast<Clock::time_point*>(*event) = Clock::now();
  }
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override {
    refuse_while_recording("event query");
    return true;
  }
  void synchronizeEvent(void*) const override { wait("synchronize"); }
  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override { delete static_cast<Clock::time_point*>(event); }
  double elapsedTime(void* first, void* last, const c10::DeviceIndex) const override {
    auto between = *static_cast<Clock::time_point*>(last) - *static_cast<Clock::time_point*>(first);
    return std::chrono::duration<double, std::milli>(between).count();
  }
};

struct Pinned final : c10::Allocator { // host memory that knows its addresses
  static inline std::mutex held;
  static inline std::map<uintptr_t, size_t> blocks; // end, bytes
  c10::DataPtr allocate(size_t bytes) override {
    refuse_while_recording("memory of the host");
    auto* storage = new c10::Storage(host_memory(bytes));
    auto* begin = static_cast<char*>(storage->mutable_data());
    std::lock_guard<std::mutex> guard(held);
    blocks[reinterpret_cast<uintptr_t>(begin) + bytes] = bytes;
    return {begin, storage, [](void* context) {
      auto* storage = static_cast<c10::Storage*>(context);
      {
        std::lock_guard<std::mutex> guard(held);
        blocks.erase(reinterpret_cast<uintptr_t>(storage->data()) + storage->nbytes());
      }
      delete storage;
    }, HOST};
  }
  bool has(const void* data) const {
    std::lock_guard<std::mutex> guard(held);
    auto block = blocks.upper_bound(reinterpret_cast<uintptr_t>(data));
    return block != blocks.end() && reinterpret_cast<uintptr_t>(data) >= block->first - block->second;
  }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { std::memcpy(to, from, bytes); }
} pinned;

struct CUDAHooks final : at::CUDAHooksInterface { // torch finds it by this name
  CUDAHooks(at::CUDAHooksArgs) {}
  void init() const override {}
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  bool hasCUDA() const override { return true; }
  int getNumGPUs() const override { return 1; }
  c10::DeviceIndex deviceCount() const override { return 1; }
  c10::DeviceIndex current_device() const override { return 0; }
  c10::DeviceIndex getCurrentDevice() const override { return 0; }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex) const override { return 0; }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex) const override { return 0; }
  void setCurrentDevice(c10::DeviceIndex) const override {}
  void deviceSynchronize(c10::DeviceIndex) const override {}
  const at::Generator& getDefaultGenerator(c10::DeviceIndex) const override { return at::detail::getDefaultCPUGenerator(); }
  at::Generator getNewGenerator(c10::DeviceIndex) const override { return at::detail::createCPUGenerator(); }
  c10::Device getDeviceFromPtr(void*) const override { return CARD; }
  bool isPinnedPtr(const void* data) const override { return pinned.has(data); }
  c10::Allocator* getPinnedMemoryAllocator() const override { return &pinned; }
  c10::Allocator* getCUDADeviceAllocator() const override { return &card_memory; }
};

// --------------------------------------------------------------------------------------------------- what Python asks

int64_t begin_recording(bool other_threads) {
  TORCH_CHECK(recording < 0, "a recording is under way");
  std::lock_guard<std::mutex> held(lock);
  recordings.emplace_back();
  recorder = std::this_thread::get_id();
  recorded_stream = stream;
  refuses_other_threads = other_threads;
  invalid = false;
  pool = generator_waits = true;
  return recording = recordings.size() - 1;
}

void end_recording() {
  recording = recorded_stream = -1;
  for (auto& [impl, then] : before) std::memcpy(then.first.mutable_data(), then.second.data(), then.second.size());
  before.clear();
  TORCH_CHECK(!invalid, "CUDA error: operation failed due to a previous error during capture");
  pool = generator_waits = false;
}

} // namespace

namespace at { REGISTER_CUDA_HOOKS(CUDAHooks) }
C10_REGISTER_GUARD_IMPL(CUDA, Guard)

TORCH_LIBRARY_IMPL(_, CUDA, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&run>());
}

TORCH_LIBRARY_IMPL(aten, CUDA, m) {
  m.impl("copy_", torch::CppFunction::makeFromBoxedFunction<&run>()); // torch has one for all devices
  m.impl("convolution", torch::CppFunction::makeFromBoxedFunction<&run>()); // else one of the card's own
  m.impl("convolution_backward", torch::CppFunction::makeFromBoxedFunction<&run>());
  m.impl("_thnn_fused_lstm_cell", &lstm_cell);
  m.impl("record_stream", [](Tensor&, c10::Stream) {});
  m.impl("scaled_dot_product_attention", &attention);
}

TORCH_LIBRARY_IMPL(aten, AutogradCUDA, m) {
  m.impl("_thnn_fused_lstm_cell", &lstm_cell);
  m.impl("scaled_dot_product_attention", &attention);
}

TORCH_LIBRARY(pseudo_cuda, m) {
  c10::SetAllocator(c10::DeviceType::CUDA, &card_memory, 1);
  m.def("begin_recording(bool other_threads) -> int", &begin_recording);
  m.def("end_recording() -> ()", &end_recording);
  m.def("replay(int number) -> ()", &replay);
  m.def("drop(int number) -> ()", [](int64_t number) { recordings[number].clear(); });
  m.def("records() -> bool", [] { return records(); });
  m.def("pool_is_open() -> bool", [] { return pool.load(); });
  m.def("end_generator() -> ()", [] { generator_waits = false; });
  m.def("set_sync_debug(int mode) -> ()", [](int64_t mode) { sync_debug = mode; });
  m.def("sync_debug() -> int", []() -> int64_t { return sync_debug; });
  m.def("stream() -> int", []() -> int64_t { return stream; });
  m.def("set_stream(int id) -> ()", [](int64_t id) { stream = id; });
  m.def("used() -> int", []() -> int64_t { return used; });
  m.def("most_used() -> int", []() -> int64_t { return most_used; });
  m.def("forget_most_used() -> ()", [] { most_used = used.load(); });
  m.def("set_limit(int bytes) -> ()", [](int64_t bytes) { limit = bytes; });
  m.def("waits() -> Dict(str, int)", [] {
    std::lock_guard<std::mutex> held(lock);
    c10::Dict<std::string, int64_t> found;
    for (auto& [name, times] : waits) found.insert(name, times);
    return found;
  });
}
