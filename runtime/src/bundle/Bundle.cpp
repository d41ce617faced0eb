//===- Bundle.cpp - compiled programs on disk -----------------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/runtime/include/Bundle.h"

#include "BundleFiles.h"
#include "BundleWeights.h"
#include "Manifest.h"

#include "meshwright/runtime/include/Cpu.h"
#include "meshwright/runtime/include/MappedFile.h"
#include "meshwright/runtime/include/Packing.h"
#include "meshwright/runtime/include/Progress.h"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <fcntl.h>
#include <filesystem>
#include <fstream>
#include <regex>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace fs = std::filesystem;

namespace meshwright::rt {

static constexpr const char *kManifest = "manifest.json", *kTextReport = "report.txt",
                            *kJsonReport = "report.json";
/// Each file of weights begins with a header of `kHeaderBytes`: this text, the bundle's id and
/// the file's name in the bundle.
static constexpr char kMagic[] = "meshwright weights\n";
static constexpr int64_t kHeaderBytes = 128;

/// The name contains a hash of the code. The system's loader returns the library that it loaded
/// from a path before, even if the file has changed, so other code needs another name.
static std::string nameOfProgram(const Manifest &manifest) {
  return "program-" + manifest.programHash + ".so";
}

/// Returns true if a writer of this version or an earlier one makes files of that name.
static bool isNameOfFile(const std::string &name) {
  static const std::regex names("manifest\\.json|report\\.(txt|json)|program(-[0-9a-f]{16})?\\.so|"
                                "weights/(shared|(group-[0-9]+-)?rank-[0-9]+)\\.bin|"
                                "kernels/[A-Za-z0-9_]+\\.(ptx|cubin)");
  return std::regex_match(name, names);
}

static bool hasManifest(const fs::path &folder) {
  std::error_code code;
  return fs::is_regular_file(folder / kManifest, code);
}

std::string readReport(const std::string &path, bool asJson, std::string &error) {
  std::string text;
  fs::path file = fs::path(path) / (asJson ? kJsonReport : kTextReport);
  if (readFile(file, text, error) && text.empty())
    error = file.string() + ": 0 bytes, no report";
  return text;
}

//===----------------------------------------------------------------------===//
// Opening
//===----------------------------------------------------------------------===//

static bool checkTarget(const Manifest &manifest, std::string &error) {
  if (manifest.architecture != getArchitecture()) {
    error = "expected a bundle for " + getArchitecture() + ", this machine, got one for " +
            manifest.architecture;
    return false;
  }
  std::string missing = getMissingFeatures(manifest.description.targetFeatures);
  if (missing.empty())
    return true;
  error = "compiled for '" + manifest.description.targetCpu + "', this processor has no " +
          missing + ": compile with another --target";
  return false;
}

/// The start of all weight files of a bundle, and of the file of that name, which states its
/// part.
static std::string headerOf(const Manifest &manifest) { return kMagic + manifest.id + "\n"; }
static std::string headerOf(const Manifest &manifest, const std::string &name) {
  return headerOf(manifest) + name + "\n";
}

static std::shared_ptr<MappedFile> openWeights(const fs::path &folder, const Manifest &manifest,
                                               const WeightGroup &group,
                                               const WeightGroup::File &expected, bool verify,
                                               std::string &error) {
  std::string path = (folder / expected.name).string();
  auto file = MappedFile::open(path, error);
  if (!file)
    return nullptr;
  auto beginsWith = [&](const std::string &text) {
    return file->getSize() >= int64_t(text.size()) &&
           std::memcmp(file->getData(), text.data(), text.size()) == 0;
  };
  if (file->getSize() != group.bytes)
    error = path + ": expected " + std::to_string(group.bytes) + " bytes, got " +
            std::to_string(file->getSize());
  else if (!beginsWith(headerOf(manifest)))
    error = path + ": not a file of this bundle";
  else if (!beginsWith(headerOf(manifest, expected.name)))
    error = path + ": not the file of this name in the bundle";
  else if (verify && hashOf(file->getData(), group.bytes) != expected.hash)
    error = path + ": changed since the bundle was written";
  else
    return file;
  return nullptr;
}

/// Loads the functions of the program's entries. The result keeps them loaded.
static std::shared_ptr<void> loadProgram(const fs::path &path, const Manifest &manifest,
                                         std::vector<mw_rt_entry> &code, std::string &error) {
  {
    auto file = MappedFile::open(path.string(), error);
    if (!file)
      return nullptr;
    if (file->getSize() != manifest.programBytes ||
        hashOf(file->getData(), file->getSize()) != manifest.programHash) {
      error = path.string() + ": changed since the bundle was written";
      return nullptr;
    }
  }
  // Load by the path: the loader would look up a bare name among the system's libraries.
  std::shared_ptr<void> library(dlopen(fs::absolute(path).c_str(), RTLD_NOW | RTLD_LOCAL),
                                [](void *handle) {
                                  if (handle)
                                    dlclose(handle);
                                });
  if (!library) {
    error = std::string("the program cannot be loaded: ") + dlerror();
    return nullptr;
  }
  auto *version = static_cast<const int64_t *>(dlsym(library.get(), "mw_abi_version"));
  bool isWhole = true;
  for (size_t i = 0; i < manifest.description.entries.size(); ++i) {
    void *entry = dlsym(library.get(), getEntrySymbol(i).c_str());
    isWhole &= entry != nullptr;
    code.push_back(reinterpret_cast<mw_rt_entry>(entry));
  }
  if (!isWhole || !version || *version != MW_RT_ABI_VERSION) {
    error = path.string() + ": not a program of this runtime";
    return nullptr;
  }
  return library;
}

static bool readManifest(const fs::path &folder, Manifest &manifest, std::string &error) {
  std::string text, problem;
  if (!hasManifest(folder)) {
    error = folder.string() + ": no bundle: it has no " + kManifest;
    return false;
  }
  if (!readFile(folder / kManifest, text, error))
    return false;
  if (Manifest::parse(text, manifest, problem) && checkTarget(manifest, problem))
    return true;
  error = (folder / kManifest).string() + ": " + problem;
  return false;
}

bool readDescription(const std::string &path, ProgramDescription &description,
                     std::string &error) {
  Manifest manifest;
  if (!readManifest(path, manifest, error))
    return false;
  description = std::move(manifest.description);
  return true;
}

std::unique_ptr<Session> openBundle(const std::string &path, const std::string &backend,
                                    const BundleWeights &weights, std::string &error) {
  fs::path folder = path;
  Manifest manifest;
  if (!readManifest(folder, manifest, error))
    return nullptr;
  if (std::string problem = checkWeights(manifest, weights); !problem.empty()) {
    error = (folder / kManifest).string() + ": " + problem;
    return nullptr;
  }
  std::vector<mw_rt_entry> code;
  std::shared_ptr<void> owner =
      loadProgram(folder / nameOfProgram(manifest), manifest, code, error);
  if (!owner)
    return nullptr;

  if (!readKernels(folder, manifest, error))
    return nullptr;
  // Files of weights, each mapped once.
  std::map<std::string, std::shared_ptr<MappedFile>> files;
  auto getBytes = [&](const Stored &stored, int64_t rank, Bytes &bytes) {
    const WeightGroup &group = manifest.groups[stored.group];
    const WeightGroup::File &expected = group.files.at(group.getHolder(rank));
    std::shared_ptr<MappedFile> &file = files[expected.name];
    if (!file)
      file = openWeights(folder, manifest, group, expected, weights.verify, error);
    if (!file)
      return false;
    bytes = {std::shared_ptr<const void>(file, file->getData() + stored.offset), stored.bytes};
    return true;
  };
  for (size_t i = 0; i < manifest.constants.size(); ++i)
    for (size_t j = 0; j < manifest.constants[i].size(); ++j)
      if (!getBytes(manifest.constants[i][j], 0, manifest.description.entries[i].constants[j].data))
        return nullptr;
  for (size_t i = 0; i < manifest.fixed.size(); ++i)
    if (Bytes bytes; manifest.fixed[i].group >= 0) {
      if (!getBytes(manifest.fixed[i], 0, bytes))
        return nullptr;
      manifest.description.stateDict->fixed[i].data = std::move(bytes.data);
    }
  auto session =
      Session::create(std::move(manifest.description), std::move(code), owner, backend, error);
  if (!session)
    return nullptr;
  session->getWorld().setBundle(manifest.id);
  if (!manifest.hasWeights)
    return giveWeights(*session, weights, error) ? std::move(session) : nullptr;
  for (int64_t rank : session->getRanks()) {
    Bytes bytes;
    for (size_t i = 0; i < manifest.parameters.size(); ++i)
      if (manifest.parameters[i].group >= 0 &&
          (!getBytes(manifest.parameters[i], rank, bytes) ||
           !session->setPlaced(i, rank, bytes, error)))
        return nullptr;
    for (size_t i = 0; i < manifest.prepared.size(); ++i)
      if (manifest.prepared[i].group >= 0 &&
          (!getBytes(manifest.prepared[i], rank, bytes) ||
           !session->setPrepared(i, rank, bytes, error)))
        return nullptr;
    for (size_t i = 0; i < manifest.states.size(); ++i)
      if (manifest.states[i].group >= 0) {
        if (!getBytes(manifest.states[i], rank, bytes))
          return nullptr;
        session->setInitial(i, rank, bytes);
      }
  }
  return session;
}

//===----------------------------------------------------------------------===//
// Writing
//===----------------------------------------------------------------------===//

/// Returns true if a bundle may replace this path: it does not exist, or it is an empty folder
/// or a bundle without other files, because everything in it will be deleted.
static bool checkPlace(const fs::path &place, std::string &error) {
  auto refuse = [&](const std::string &why) {
    error = "cannot write bundle '" + place.string() + "': " + why;
    return false;
  };
  std::error_code code;
  fs::file_status status = fs::symlink_status(place, code);
  if (!fs::exists(status))
    return true;
  if (!fs::is_directory(status))
    return refuse("something else is there");
  if (fs::is_empty(place, code))
    return true;
  if (!hasManifest(place))
    return refuse(std::string("something else is there: a folder without ") + kManifest);
  std::string text, problem;
  if (!readFile(place / kManifest, text, problem))
    return refuse(problem);
  if (!Manifest::isOne(text))
    return refuse(std::string("something else is there: its ") + kManifest +
                  " is not one of a bundle");
  fs::recursive_directory_iterator entry(place, code);
  for (; entry != fs::recursive_directory_iterator(); entry.increment(code)) {
    std::string name = entry->path().lexically_relative(place).string();
    std::error_code unknown;
    fs::file_status kind = entry->symlink_status(unknown);
    if (fs::is_directory(kind) ? name != "weights" && name != kKernelFolder
                               : !fs::is_regular_file(kind) || !isNameOfFile(name))
      return refuse("'" + name + "' in it is no part of a bundle and would be deleted");
  }
  return !code || refuse(code.message());
}

std::unique_ptr<BundleWriter> BundleWriter::create(const std::string &path, std::string &error) {
  fs::path target = fs::absolute(path).lexically_normal();
  // "bundle/" names the same folder.
  if (target.filename().empty())
    target = target.parent_path();
  if (!checkPlace(target, error))
    return nullptr;
  std::string partial =
      (target.parent_path() / ("." + target.filename().string() + ".partial-XXXXXX")).string();
  if (!mkdtemp(partial.data())) {
    error = "cannot write bundle '" + target.string() + "': " + std::strerror(errno);
    return nullptr;
  }
  std::unique_ptr<BundleWriter> writer(new BundleWriter());
  writer->path = target.string();
  writer->partial = std::make_unique<Temporary>(partial);
  // The permissions of a folder that the user makes.
  mode_t mask = umask(0);
  umask(mask);
  chmod(partial.c_str(), 0777 & ~mask);
  return writer;
}

BundleWriter::~BundleWriter() = default;

std::string BundleWriter::getProgramPath() const {
  return (fs::path(partial->getPath()) / "program.so").string();
}

namespace {

/// Assigns offsets in a group's files.
struct GroupLayout {
  WeightGroup group;

  GroupLayout() { group.bytes = kHeaderBytes; }
  Stored add(int64_t index, int64_t bytes) {
    // Large values begin at a page.
    int64_t alignment = bytes >= 4096 ? 4096 : kAlignment;
    group.bytes = (group.bytes + alignment - 1) / alignment * alignment;
    Stored stored{index, group.bytes, bytes};
    group.bytes += bytes;
    return stored;
  }
};

/// Bytes at an offset of a file.
struct Content {
  Stored stored;
  std::function<bool(int64_t rank, char *to)> fill;
};

/// All values in files of weights, by group. The first group has the values that all ranks share.
struct Contents {
  std::vector<GroupLayout> layouts{1};
  std::vector<std::vector<Content>> contents{1};

  /// Assigns an offset to a value.
  Stored add(const mw_rt_axes &axes, int64_t bytes, std::function<bool(int64_t, char *)> fill) {
    size_t index = 0;
    while (index < layouts.size() &&
           std::memcmp(&layouts[index].group.axes, &axes, sizeof(axes)) != 0)
      ++index;
    if (index == layouts.size()) {
      layouts.emplace_back().group.axes = axes;
      contents.emplace_back();
    }
    Stored stored = layouts[index].add(index, bytes);
    contents[index].push_back({stored, std::move(fill)});
    return stored;
  }
};

} // namespace

/// The axes along which parts differ, major to minor, each once.
static mw_rt_axes axesOf(const ProgramValue &value) {
  std::vector<std::pair<int64_t, int64_t>> found;
  auto add = [&](const mw_rt_axes &axes) {
    for (int64_t i = 0; i < axes.count; ++i)
      if (axes.axes[i].size > 1)
        found.emplace_back(-axes.axes[i].stride, axes.axes[i].size);
  };
  for (const auto &dim : value.layout.dims)
    for (const ShardedFactor &factor : dim)
      add(factor.axes);
  add(value.unreduced);
  std::sort(found.begin(), found.end());
  found.erase(std::unique(found.begin(), found.end()), found.end());
  mw_rt_axes axes = {};
  for (auto [stride, size] : found)
    axes.axes[axes.count++] = {-stride, size};
  return axes;
}

/// Writes a file part by part.
static bool writeWeights(const fs::path &path, int64_t rank, std::string header, int64_t bytes,
                         const std::vector<Content> &contents, Progress &progress,
                         std::string &hash, std::string &error) {
  int file = open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (file < 0)
    return fail(path, errno, error);
  Hash hashed;
  auto append = [&](const char *data, int64_t size) {
    hashed.add(data, size);
    while (size > 0) {
      ssize_t written = ::write(file, data, size);
      if (written < 0 && errno == EINTR)
        continue;
      if (written <= 0)
        return fail(path, written < 0 ? errno : EIO, error);
      data += written, size -= written;
    }
    return true;
  };
  // The gaps between parts are zeros.
  auto endOf = [&](size_t part) {
    return part < contents.size() ? contents[part].stored.offset : bytes;
  };
  header.resize(endOf(0));
  bool fine = append(header.data(), header.size());
  for (size_t i = 0; fine && i < contents.size(); ++i) {
    const auto &[stored, fill] = contents[i];
    int64_t size = endOf(i + 1) - stored.offset;
    Memory buffer = allocate(size);
    if (buffer)
      std::memset(buffer.get() + stored.bytes, 0, size - stored.bytes);
    if (!buffer || !fill(rank, buffer.get()))
      fine = error.empty() && fail(path, ENOMEM, error);
    fine = fine && append(buffer.get(), size);
    progress.step();
  }
  hash = hashed.get();
  if (close(file) != 0 && fine)
    fine = fail(path, errno, error);
  return fine;
}

/// Names the files of one of `count` groups. The first has one file, which all ranks share.
static void nameFiles(WeightGroup &group, size_t index, size_t count, int64_t numRanks) {
  std::string stem = index == 0   ? "shared"
                     : count == 2 ? "rank"
                                  : "group-" + std::to_string(index) + "-rank";
  for (int64_t rank = 0; rank < numRanks; ++rank)
    if (group.getHolder(rank) == rank)
      group.files[rank].name =
          "weights/" + stem + (index == 0 ? "" : "-" + std::to_string(rank)) + ".bin";
}

bool BundleWriter::write(const ProgramDescription &description, const Weights &weights,
                         const std::string &textReport, const std::string &jsonReport,
                         std::string &error) {
  Manifest manifest;
  manifest.description = description;
  manifest.architecture = getArchitecture();
  manifest.id = makeRandomName() + makeRandomName();
  manifest.hasWeights = weights != nullptr;
  {
    auto program = MappedFile::open(getProgramPath(), error);
    if (!program)
      return false;
    manifest.programBytes = program->getSize();
    manifest.programHash = hashOf(program->getData(), program->getSize());
  }
  fs::path folder = partial->getPath();
  std::error_code code;
  fs::rename(getProgramPath(), folder / nameOfProgram(manifest), code);
  if (code)
    return fail(folder / nameOfProgram(manifest), code.value(), error);

  if (!writeKernels(folder, manifest, error))
    return false;

  Contents values;
  for (const EntryDescription &entry : description.entries) {
    std::vector<Stored> &constants = manifest.constants.emplace_back();
    for (const ProgramConstant &constant : entry.constants)
      constants.push_back(values.add({}, constant.data.size, [&constant](int64_t, char *to) {
        std::memcpy(to, constant.data.data.get(), constant.data.size);
        return true;
      }));
  }
  for (size_t i = 0; description.stateDict && i < description.stateDict->fixed.size(); ++i) {
    const FixedTensor &tensor = description.stateDict->fixed[i];
    Stored &stored = manifest.fixed.emplace_back();
    if (weights && tensor.data)
      stored = values.add({}, tensor.bytes, [&tensor](int64_t, char *to) {
        std::memcpy(to, tensor.data.get(), tensor.bytes);
        return true;
      });
  }
  auto addPlaced = [&](const ProgramValue &value, int64_t parameter) {
    return values.add(axesOf(value), value.getLocalBytes(),
                      [&, parameter](int64_t rank, char *to) {
                        auto tensor = weights(parameter, error);
                        if (tensor)
                          place(value, rank, *tensor, to);
                        return bool(tensor);
                      });
  };
  manifest.parameters.resize(description.parameters.size());
  manifest.prepared.resize(description.prepared.size());
  manifest.states.resize(description.states.size());
  std::vector<bool> isRead = description.findReadParameters();
  for (size_t i = 0; weights && i < description.parameters.size(); ++i)
    if (isRead[i])
      manifest.parameters[i] = addPlaced(description.parameters[i], i);
  for (size_t i = 0; weights && i < description.prepared.size(); ++i) {
    const PreparedWeight &prepared = description.prepared[i];
    // States are packed when a session has their values.
    if (prepared.kind == ProgramArgument::State)
      continue;
    const ProgramValue &value = description.parameters[prepared.index];
    float largest = 0;
    auto tensor = weights(prepared.index, error);
    if (tensor)
      error = measureParameter(prepared, value, *tensor, largest);
    if (!error.empty())
      return false;
    manifest.prepared[i] = values.add(
        axesOf(value), sizeOfPacked(prepared.packing), [&, largest](int64_t rank, char *to) {
          auto tensor = weights(prepared.index, error);
          return tensor && packPart(prepared, value, rank, *tensor, largest, to);
        });
  }
  for (size_t i = 0; weights && i < description.states.size(); ++i)
    if (const ProgramState &state = description.states[i]; !state.parameter.empty())
      manifest.states[i] =
          addPlaced(state.value, description.findParameter(state.parameter));

  int64_t numParts = 0;
  for (size_t i = 0; i < values.layouts.size(); ++i) {
    WeightGroup &group = values.layouts[i].group;
    nameFiles(group, i, values.layouts.size(), description.numRanks);
    numParts += group.files.size() * values.contents[i].size();
    manifest.groups.push_back(group);
  }
  if (!fs::create_directory(folder / "weights", code))
    return fail(folder / "weights", code.value(), error);
  Progress progress("writing weights", numParts);
  for (size_t i = 0; i < manifest.groups.size(); ++i)
    for (auto &[rank, file] : manifest.groups[i].files)
      if (!writeWeights(folder / file.name, rank, headerOf(manifest, file.name),
                        manifest.groups[i].bytes, values.contents[i], progress, file.hash, error))
        return false;
  return (textReport.empty() || writeText(folder / kTextReport, textReport, error)) &&
         (jsonReport.empty() || writeText(folder / kJsonReport, jsonReport, error)) &&
         writeText(folder / kManifest, manifest.toJson(), error);
}

/// Makes all files of a folder, and their names, permanent.
static bool syncTree(const fs::path &folder, std::string &error) {
  std::error_code code;
  for (fs::recursive_directory_iterator entry(folder, code), end; !code && entry != end;
       entry.increment(code)) {
    bool isFolder = entry->is_directory(code);
    if (!(isFolder ? syncFolder(entry->path(), error) : syncFile(entry->path(), error)))
      return false;
  }
  return code ? fail(folder, code.value(), error) : syncFolder(folder, error);
}

bool BundleWriter::finish(std::string &error) {
  // Another process may have created files there while this one compiled.
  if (!checkPlace(path, error))
    return false;
  bool isReplaced = hasManifest(path);
  const std::string &written = partial->getPath();
  // A bundle that is there goes only when the new one is on the disk.
  return (!isReplaced || syncTree(written, error)) && takePlace(error) &&
         (!isReplaced || syncFolder(folderOf(path), error));
}

/// Gives the folder its name.
bool BundleWriter::takePlace(std::string &error) {
  const std::string &written = partial->getPath();
  if (rename(written.c_str(), path.c_str()) == 0) {
    partial->keep();
    return true;
  }
  // Replace a bundle: exchange the two names, and delete the old bundle with the temporary
  // folder.
  if (syscall(SYS_renameat2, AT_FDCWD, written.c_str(), AT_FDCWD, path.c_str(),
              /*RENAME_EXCHANGE*/ 2) == 0)
    return true;
  // The file system cannot exchange names. Between the two steps no signal deletes one of the bundles.
  std::string old = written + ".old";
  if (!partial->keep())
    return fail(path, EINTR, error);
  int problem = 0;
  if (rename(path.c_str(), old.c_str()) != 0) {
    problem = errno;
  } else if (rename(written.c_str(), path.c_str()) != 0) {
    problem = errno;
    rename(old.c_str(), path.c_str());
  }
  std::string left = problem ? written : old;
  partial = std::make_unique<Temporary>(left);
  return problem == 0 || fail(path, problem, error);
}

} // namespace meshwright::rt
