//===- Module.cpp - the Python module meshwright._core --------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// The C++ facade, one to one. Fallible functions return a pair of value or None
// and diagnostics, (message, severity, file, line) each; the package makes
// exceptions and warnings of them. Arrays are (element type, shape, address, GPU or -1).
//
//===----------------------------------------------------------------------===//

#include "Gil.h"
#include "Results.h"
#include "Serving.h"

#include "meshwright/Calibration.h"
#include "meshwright/Compiler.h"

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

namespace nb = nanobind;
using namespace meshwright;

using PyArray = std::tuple<std::string, std::vector<int64_t>, uintptr_t, int64_t>;
/// Offsets, shape, strides in elements and address.
using PyPiece =
    std::tuple<std::vector<int64_t>, std::vector<int64_t>, std::vector<int64_t>, uintptr_t>;

namespace {
/// A row of the table of element types, as strings and numbers.
struct ElementInfo {
  ElementType type;
  const char *name;
  int64_t bits;
  const char *use, *stored;
  uint8_t dlpack;
  const char *numpy, *torch;
  double tolerance;
};
} // namespace

static constexpr ElementInfo kElementTypes[] = {
#define MW_ELEMENT_TYPE(ID, NAME, BITS, USE, MLIR, STORED, DLPACK, NUMPY, TORCH, TOLERANCE)        \
  {ElementType::ID, NAME, BITS, #USE, STORED, DLPACK, NUMPY, TORCH, TOLERANCE},
#include "meshwright-c/ElementTypes.def"
};

static const ElementInfo &getElement(std::string_view name) {
  for (const ElementInfo &info : kElementTypes)
    if (name == info.name)
      return info;
  throw nb::value_error(("unknown element type " + std::string(name)).c_str());
}

/// The element type in DLPack's terms: code, bits and lanes.
static nb::dlpack::dtype toDLPack(const ElementInfo &info) {
  // A value of DLPack is a byte, also where elements share one.
  return {info.dlpack, uint8_t(info.bits), uint16_t(info.bits < 8 ? 8 / info.bits : 1)};
}

static HostArray toArray(const PyArray &array) {
  const auto &[type, shape, address, gpu] = array;
  return {getElement(type).type, shape, reinterpret_cast<const void *>(address), gpu};
}

static std::vector<HostArray> toArrays(const std::vector<PyArray> &arrays) {
  std::vector<HostArray> result;
  for (const PyArray &array : arrays)
    result.push_back(toArray(array));
  return result;
}

/// An array that another library made.
struct ImportedArray {
  nb::ndarray<nb::ro> array;

  std::string getType() const {
    for (const ElementInfo &info : kElementTypes)
      if (array.dtype() == toDLPack(info))
        return info.name;
    return "another type";
  }
  bool isDense() const {
    int64_t stride = 1;
    for (size_t d = array.ndim(); d-- > 0; stride *= array.shape(d))
      if (array.shape(d) != 1 && array.stride(d) != stride)
        return false;
    return true;
  }
};

static std::vector<void *> toAddresses(const std::vector<uintptr_t> &numbers) {
  std::vector<void *> addresses;
  for (uintptr_t number : numbers)
    addresses.push_back(reinterpret_cast<void *>(number));
  return addresses;
}

NB_MODULE(_core, m) {
  // PyTorch keeps modules alive that hold values of ours until the process ends.
  nb::set_leak_warnings(false);
  m.doc() = "Meshwright's compiler and runtime";
  handleSignals(m);

  // The table of element types, in the order of their numbers.
  nb::class_<ElementInfo>(m, "ElementType")
      .def_ro("name", &ElementInfo::name)
      .def_ro("bits", &ElementInfo::bits)
      .def_ro("use", &ElementInfo::use)
      .def_ro("stored", &ElementInfo::stored)
      .def_ro("numpy", &ElementInfo::numpy)
      .def_ro("torch", &ElementInfo::torch)
      .def_ro("tolerance", &ElementInfo::tolerance);
  m.attr("ELEMENT_TYPES") =
      std::vector<ElementInfo>(std::begin(kElementTypes), std::end(kElementTypes));

  nb::class_<Port>(m, "Port")
      .def_ro("name", &Port::name)
      .def_prop_ro("dtype",
                   [](const Port &port) { return std::string(meshwright::toString(port.type)); })
      .def_ro("shape", &Port::shape)
      .def_ro("aliases", &Port::aliases)
      .def_ro("offsets", &Port::offsets)
      .def_prop_ro("has_default", [](const Port &port) { return !port.defaultElement.empty(); })
      .def_ro("is_batch", &Port::isBatch)
      .def_ro("role", &Port::role);

  nb::class_<Entry>(m, "Entry")
      .def_ro("name", &Entry::name)
      .def_ro("inputs", &Entry::inputs)
      .def_ro("outputs", &Entry::outputs);

  // A line that goes when the block of a `with` ends.
  nb::class_<ProgressLine>(m, "ProgressLine")
      .def(nb::init<std::string_view, int64_t>())
      .def("step", &ProgressLine::step)
      .def_static("hide", &ProgressLine::hide)
      .def("__enter__", [](nb::object line) { return line; })
      .def("__exit__", [](ProgressLine &line, nb::args) { line.end(); });

  nb::enum_<PlanPhase>(m, "Phase")
      .value("global", PlanPhase::Global)
      .value("annotated", PlanPhase::Annotated)
      .value("propagated", PlanPhase::Propagated)
      .value("spmd", PlanPhase::Spmd)
      .value("rt", PlanPhase::Rt);

  nb::class_<OptimizerOptions>(m, "OptimizerOptions")
      .def(nb::init<>())
      .def_rw("kind", &OptimizerOptions::kind)
      .def_rw("lr", &OptimizerOptions::lr)
      .def_rw("momentum", &OptimizerOptions::momentum)
      .def_rw("beta1", &OptimizerOptions::beta1)
      .def_rw("beta2", &OptimizerOptions::beta2)
      .def_rw("eps", &OptimizerOptions::eps)
      .def_rw("weight_decay", &OptimizerOptions::weightDecay);
  nb::class_<TrainOptions>(m, "TrainOptions")
      .def(nb::init<>())
      .def_rw("optimizer", &TrainOptions::optimizer)
      .def_rw("loss", &TrainOptions::loss)
      .def_rw("parameters", &TrainOptions::parameters)
      .def_rw("frozen", &TrainOptions::frozen)
      .def_rw("clip_norm", &TrainOptions::clipNorm)
      .def_rw("loss_scale", &TrainOptions::lossScale)
      .def_rw("growth_interval", &TrainOptions::growthInterval)
      .def_rw("microbatches", &TrainOptions::microbatches)
      .def_rw("seed", &TrainOptions::seed);

  // The elements are in memory of the caller, or of the session that gives the tensor.
  nb::class_<FixedTensor>(m, "FixedTensor")
      .def(
          "__init__",
          [](FixedTensor *tensor, std::string name, std::string dtype, std::vector<int64_t> shape,
             bool isRead, uintptr_t address, int64_t bytes) {
            std::shared_ptr<const void> data(reinterpret_cast<const void *>(address),
                                             [](const void *) {});
            new (tensor) FixedTensor{std::move(name), std::move(dtype), std::move(shape),
                                     isRead,          std::move(data),  bytes};
          },
          nb::arg("name"), nb::arg("dtype"), nb::arg("shape"), nb::arg("is_read"),
          nb::arg("address"), nb::arg("bytes"))
      .def_ro("name", &FixedTensor::name)
      .def_ro("dtype", &FixedTensor::type)
      .def_ro("shape", &FixedTensor::shape)
      .def_ro("is_read", &FixedTensor::isRead)
      // The bytes of the elements, not copied; None if they are not known.
      .def_prop_ro("data", [](const FixedTensor &tensor) -> nb::object {
        if (!tensor.data)
          return nb::none();
        using Owner = std::shared_ptr<const void>;
        nb::capsule owner(new Owner(tensor.data),
                          [](void *kept) noexcept { delete static_cast<Owner *>(kept); });
        size_t size = tensor.bytes;
        return nb::cast(nb::ndarray<nb::numpy, const uint8_t>(tensor.data.get(), 1, &size, owner));
      });
  nb::class_<StateDictLayout>(m, "StateDictLayout")
      .def(nb::init<>())
      .def_rw("optimizer", &StateDictLayout::optimizer)
      .def_rw("keys", &StateDictLayout::keys)
      .def_rw("trained", &StateDictLayout::trained)
      .def_rw("fixed", &StateDictLayout::fixed);

  nb::class_<SavedExtras>(m, "SavedExtras")
      .def(nb::init<>())
      .def_rw("learning_rate", &SavedExtras::learningRate)
      .def_rw("unread", &SavedExtras::unread);

  nb::class_<Program>(m, "Program")
      .def_static(
          "parse",
          [](std::string_view text, std::string_view name) {
            return toPython(Program::parse(text, name));
          },
          nb::call_guard<ReleasedGil>())
      .def_static(
          "parse_file", [](std::string_view path) { return toPython(Program::parseFile(path)); },
          nb::call_guard<ReleasedGil>())
      .def_static(
          "compose",
          [](const std::vector<std::pair<std::string, Program>> &models,
             const std::vector<std::pair<std::string, std::string>> &connect,
             const std::vector<std::string> &loop, int64_t steps) {
            std::vector<Stage> stages;
            for (const auto &[name, program] : models)
              stages.push_back({name, program});
            std::vector<Connection> connections;
            for (const auto &[input, output] : connect)
              connections.push_back({input, output});
            return toPython(Program::compose(stages, connections, loop, steps));
          },
          nb::call_guard<ReleasedGil>())
      .def_static(
          "join",
          [](const std::vector<std::pair<std::string, Program>> &models) {
            std::vector<Stage> programs;
            for (const auto &[name, program] : models)
              programs.push_back({name, program});
            return toPython(Program::join(programs));
          },
          nb::call_guard<ReleasedGil>())
      .def(
          "differentiate",
          [](const Program &program, std::string_view loss,
             const std::vector<std::string> &parameters, const std::vector<std::string> &frozen) {
            return toPython(program.differentiate(loss, parameters, frozen));
          },
          nb::call_guard<ReleasedGil>())
      .def(
          "train",
          [](const Program &program, const TrainOptions &options) {
            return toPython(program.train(options));
          },
          nb::call_guard<ReleasedGil>())
      .def(
          "serve",
          [](const Program &program, const ServeOptions &options) {
            return toPython(program.serve(options));
          },
          nb::call_guard<ReleasedGil>())
      .def("str", &Program::str, nb::arg("locations") = false, nb::arg("generic") = false)
      .def_prop_ro("is_spmd", &Program::isSpmd)
      .def_prop_ro("entries", &Program::getEntries)
      .def_prop_ro("states", &Program::getStates)
      .def_prop_ro("inputs", &Program::getInputs)
      .def_prop_ro("parameters", &Program::getParameters)
      .def_prop_ro("outputs", &Program::getOutputs);

  nb::class_<CompileSummary>(m, "CompileSummary")
      .def_ro("kernels", &CompileSummary::kernels)
      .def_ro("cached_kernels", &CompileSummary::cachedKernels)
      .def_ro("compiled_kernels", &CompileSummary::compiledKernels)
      .def_ro("entry_milliseconds", &CompileSummary::entryMilliseconds);
  nb::class_<OutputDifference>(m, "OutputDifference")
      .def_ro("name", &OutputDifference::name)
      .def_ro("difference", &OutputDifference::difference);

  nb::class_<CheckResult>(m, "CheckResult")
      .def_ro("outputs", &CheckResult::outputs)
      .def_ro("passed", &CheckResult::passed)
      .def_ro("first_difference", &CheckResult::firstDifference)
      .def_ro("file", &CheckResult::file)
      .def_ro("line", &CheckResult::line);

  nb::class_<RunOptions>(m, "RunOptions")
      .def(nb::init<>())
      .def_rw("entry", &RunOptions::entry)
      .def_rw("backend", &RunOptions::backend)
      .def_rw("threads_per_rank", &RunOptions::threadsPerRank)
      .def_rw("timeout", &RunOptions::timeout)
      .def_rw("check_finite", &RunOptions::checkFinite)
      .def_rw("trace", &RunOptions::trace)
      .def_rw("measure", &RunOptions::measure)
      .def_rw("target", &RunOptions::target)
      .def_rw("output_gpu", &RunOptions::outputGpu);

  nb::class_<SessionOptions>(m, "SessionOptions")
      .def(nb::init<>())
      .def_rw("backend", &SessionOptions::backend)
      .def_rw("threads_per_rank", &SessionOptions::threadsPerRank)
      .def_rw("timeout", &SessionOptions::timeout)
      .def_rw("target", &SessionOptions::target)
      .def_rw("state", &SessionOptions::state)
      .def_rw("recover", &SessionOptions::recover)
      .def_rw("graphs", &SessionOptions::graphs)
      .def_rw("weights", &SessionOptions::weights)
      .def_rw("random_weights", &SessionOptions::randomWeights);

  nb::class_<ImportedArray>(m, "ImportedArray")
      .def_prop_ro("dtype", &ImportedArray::getType)
      .def_prop_ro("shape",
                   [](const ImportedArray &imported) {
                     std::vector<int64_t> shape;
                     for (size_t d = 0; d < imported.array.ndim(); ++d)
                       shape.push_back(int64_t(imported.array.shape(d)));
                     return shape;
                   })
      .def_prop_ro("is_dense", &ImportedArray::isDense)
      .def_prop_ro("address", [](const ImportedArray &imported) {
        return reinterpret_cast<uintptr_t>(imported.array.data());
      });
  m.def("calibrate", [](std::string_view path, std::string_view backend, int64_t threads) {
    CalibrationOptions options;
    options.backend = backend;
    options.threadsPerRank = threads;
    return toPython(withoutGil([&] { return calibrate(path, options); }));
  });
  m.def("import_dlpack", [](nb::ndarray<nb::ro> array) { return ImportedArray{std::move(array)}; });

  nb::class_<GpuMemory>(m, "GpuMemory")
      .def_static("open",
                  [](std::string_view backend, int64_t gpu) {
                    return toPython(GpuMemory::open(backend, gpu));
                  })
      .def_prop_ro("stream", &GpuMemory::getStream)
      // An uninitialised array of that GPU, and its address.
      .def("allocate",
           [](const GpuMemory &memory, std::string_view name, const std::vector<size_t> &shape,
              int gpu) {
             const ElementInfo &element = getElement(name);
             int64_t bytes = getByteWidth(element.type);
             for (size_t size : shape)
               bytes *= int64_t(size);
             Result<std::shared_ptr<void>> made = memory.allocate(bytes);
             PyResult<std::pair<nb::object, uintptr_t>> result;
             result.second = toPython(Result<bool>(made.getDiagnostics())).second;
             if (!made)
               return result;
             auto owner = std::make_unique<std::shared_ptr<void>>(*made);
             void *data = owner->get();
             nb::capsule capsule(owner.release(), [](void *kept) noexcept {
               delete static_cast<std::shared_ptr<void> *>(kept);
             });
             nb::ndarray<nb::array_api> array(data, shape.size(), shape.data(), capsule, nullptr,
                                 toDLPack(element), nb::device::cuda::value, gpu);
             result.first.emplace(nb::cast(array), reinterpret_cast<uintptr_t>(data));
             return result;
           });

  nb::class_<Session>(m, "Session")
      .def_prop_ro("entries", &Session::getEntries)
      .def_prop_ro("states", &Session::getStates)
      .def_prop_ro("state_dict", &Session::getStateDict)
      .def_prop_ro("is_stuck", &Session::isStuck)
      .def_prop_ro("serves", &Session::serves)
      .def("run",
           [](Session &session, std::string_view entry, const std::vector<PyArray> &inputs,
              const std::vector<uintptr_t> &outputs, bool checkFinite, int64_t outputGpu) {
             std::vector<HostArray> arrays = toArrays(inputs);
             std::vector<void *> addresses = toAddresses(outputs);
             return toPython(withoutGil([&] {
               return session.run(arrays, addresses, entry, checkFinite, outputGpu);
             }));
           })
      .def("get_state",
           [](const Session &session, const std::vector<uintptr_t> &arrays) {
             std::vector<void *> addresses = toAddresses(arrays);
             return toPython(withoutGil([&] { return session.getState(addresses); }));
           })
      .def("set_state",
           [](Session &session, const std::vector<std::pair<std::string, PyArray>> &values) {
             std::vector<NamedArray> arrays;
             for (const auto &[name, array] : values)
               arrays.push_back({name, toArray(array)});
             return toPython(withoutGil([&] { return session.setState(arrays); }));
           })
      .def("save",
           [](const Session &session, std::string_view folder) {
             return toPython(withoutGil([&] { return session.save(folder); }));
           })
      .def_prop_ro("extras", &Session::getExtras)
      .def("set_extras", [](Session &session, const SavedExtras &extras) {
        return toPython(session.setExtras(extras));
      });

  bindServing(m);
  nb::class_<Bundle>(m, "Bundle")
      .def_static(
          "open", [](std::string_view path) { return toPython(Bundle::open(path)); },
          nb::call_guard<ReleasedGil>())
      .def_prop_ro("num_ranks", &Bundle::getNumRanks)
      .def_prop_ro("entries", &Bundle::getEntries)
      .def_prop_ro("states", &Bundle::getStates)
      .def("start", [](const Bundle &bundle, const SessionOptions &options) {
        return toPython(withoutGil([&] { return bundle.start(options); }));
      });

  nb::class_<Plan>(m, "Plan")
      .def_static(
          "count_groups", [](std::string_view options) { return toPython(Plan::countGroups(options)); })
      .def_static(
          "count_dealt", [](std::string_view options) { return toPython(Plan::countDealt(options)); })
      .def_static(
          "token_gather", [](std::string_view options) { return toPython(Plan::getTokenGather(options)); })
      .def_static(
          "parallelize",
          [](const Program &program, std::string_view options) {
            return toPython(Plan::parallelize(program, options));
          },
          nb::call_guard<ReleasedGil>())
      .def(
          "str",
          [](const Plan &plan, PlanPhase phase, bool locations, bool generic) {
            ReleasedGil released;
            return toPython(plan.str(phase, locations, generic));
          },
          nb::arg("phase"), nb::arg("locations") = false, nb::arg("generic") = false)
      .def(
          "report",
          [](const Plan &plan, bool json, std::string_view entry, bool verbose) {
            return plan.report(json ? ReportFormat::Json : ReportFormat::Text, entry, verbose);
          },
          nb::call_guard<ReleasedGil>())
      .def_prop_ro("num_ranks", &Plan::getNumRanks)
      .def_prop_ro("is_stuck", &Plan::isStuck)
      .def_prop_ro("entries", &Plan::getEntries)
      .def_prop_ro("states", &Plan::getStates)
      .def("start",
           [](Plan &plan, const SessionOptions &options) {
             return toPython(withoutGil([&] { return plan.start(options); }));
           })
      .def_prop_ro("inputs", &Plan::getInputs)
      .def_prop_ro("parameters", &Plan::getParameters)
      .def_prop_ro("outputs", &Plan::getOutputs)
      .def("set_parameter",
           [](Plan &plan, std::string_view name, const PyArray &array) {
             HostArray tensor = toArray(array);
             ReleasedGil released;
             return toPython(plan.setParameter(name, tensor));
           })
      .def("set_parameter",
           [](Plan &plan, std::string_view name, const PyArray &array,
              const std::vector<PyPiece> &pieces) {
             HostArray tensor = toArray(array);
             for (const auto &[offsets, shape, strides, address] : pieces)
               tensor.pieces.push_back(
                   {offsets, shape, strides, reinterpret_cast<const void *>(address)});
             ReleasedGil released;
             return toPython(plan.setParameter(name, tensor));
           })
      .def("run",
           [](Plan &plan, const std::vector<PyArray> &inputs, const std::vector<uintptr_t> &outputs,
              const RunOptions &options) {
             std::vector<HostArray> arrays = toArrays(inputs);
             std::vector<void *> addresses = toAddresses(outputs);
             return toPython(withoutGil([&] { return plan.run(arrays, addresses, options); }));
           })
      .def(
          "compile",
          [](Plan &plan, std::string_view path, std::string_view target, bool withWeights,
             const std::optional<StateDictLayout> &stateDict) {
            return toPython(
                withoutGil([&] { return plan.compile(path, target, withWeights, stateDict); }));
          },
          nb::arg("path"), nb::arg("target"), nb::arg("weights"),
          nb::arg("state_dict") = nb::none())
      .def("check", [](Plan &plan, const std::vector<PyArray> &inputs, double tolerance,
                       std::string_view entry) {
        std::vector<HostArray> arrays = toArrays(inputs);
        return toPython(withoutGil([&] { return plan.check(arrays, tolerance, entry); }));
      });
}
