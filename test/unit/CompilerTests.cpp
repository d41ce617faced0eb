//===- CompilerTests.cpp - the C++ facade ---------------------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright-c/Run.h"
#include "meshwright/Compiler.h"
#include "meshwright/runtime/include/Bundle.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <numeric>
#include <unistd.h>

using namespace meshwright;

namespace {

constexpr const char *text = R"mlir(
func.func @main(%x: tensor<3x4xf32> {nn.input = "x"},
                %u: tensor<8x4xf32> {nn.parameter = "up", nn.aliases = ["also"]},
                %d: tensor<4x8xf32> {nn.parameter = "down"}) -> (tensor<3x4xf32> {nn.output = "y"}) {
  %0 = nn.linear %x, %u {nn.id = 0 : i64} : (tensor<3x4xf32>, tensor<8x4xf32>) -> tensor<3x8xf32>
  %1 = nn.relu %0 {nn.id = 1 : i64} : tensor<3x8xf32>
  %2 = nn.linear %1, %d {nn.id = 2 : i64} : (tensor<3x8xf32>, tensor<4x8xf32>) -> tensor<3x4xf32>
  return %2 : tensor<3x4xf32>
}
)mlir";

std::string getMessages(const std::vector<Diagnostic> &diagnostics) {
  std::string messages;
  for (const Diagnostic &diagnostic : diagnostics)
    messages += diagnostic.message + "\n";
  return messages;
}

TEST(Compiler, PlansAndRuns) {
  Result<Program> program = Program::parse(text, "mlp.mlir");
  ASSERT_TRUE(program) << getMessages(program.getDiagnostics());
  ASSERT_EQ(program->getParameters().size(), 2u);
  EXPECT_EQ(program->getParameters()[0].aliases, std::vector<std::string>{"also"});
  EXPECT_EQ(program->getInputs()[0].shape, (std::vector<int64_t>{3, 4}));

  Result<Plan> plan = Plan::parallelize(*program, "mesh=tp=2 sequence-parallel=on");
  ASSERT_TRUE(plan) << getMessages(plan.getDiagnostics());
  EXPECT_EQ(plan->getNumRanks(), 2);
  EXPECT_NE(plan->str(PlanPhase::Spmd)->find("dist.spmd"), std::string::npos);
  EXPECT_NE(plan->report(ReportFormat::Json).find("\"schema\": 1"), std::string::npos);

  std::vector<float> x(12), up(32), down(32), y(12), want(12);
  std::iota(x.begin(), x.end(), -5.0f);
  std::iota(up.begin(), up.end(), -16.0f);
  std::iota(down.begin(), down.end(), -8.0f);
  for (int i = 0; i < 3; ++i)
    for (int o = 0; o < 4; ++o)
      for (int h = 0; h < 8; ++h) {
        float inner = 0;
        for (int k = 0; k < 4; ++k)
          inner += x[i * 4 + k] * up[h * 4 + k];
        want[i * 4 + o] += std::max(inner, 0.0f) * down[o * 8 + h];
      }

  // By an alias too.
  EXPECT_TRUE(plan->setParameter("also", {ElementType::F32, {8, 4}, up.data()}));
  HostArray input{ElementType::F32, {3, 4}, x.data()};
  Result<bool> early = plan->run({input}, {y.data()});
  EXPECT_FALSE(early);
  EXPECT_NE(getMessages(early.getDiagnostics()).find("parameter 'down' has no value"),
            std::string::npos);
  EXPECT_TRUE(plan->setParameter("down", {ElementType::F32, {4, 8}, down.data()}));
  Result<bool> run = plan->run({input}, {y.data()});
  ASSERT_TRUE(run) << getMessages(run.getDiagnostics());
  EXPECT_EQ(y, want);
  Result<CheckResult> check = plan->check({input});
  ASSERT_TRUE(check) << getMessages(check.getDiagnostics());
  EXPECT_TRUE(check->passed);
}

constexpr const char *counter = R"mlir(
nn.state @sum {parameter = "start"} : tensor<5xf32>
func.func @main(%x: tensor<5xf32> {nn.input = "x"}) -> (tensor<5xf32> {nn.output = "old"}) {
  %old = nn.read @sum : tensor<5xf32>
  %new = nn.add %old, %x : (tensor<5xf32>, tensor<5xf32>) -> tensor<5xf32>
  nn.write @sum, %new : tensor<5xf32>
  return %old : tensor<5xf32>
}
func.func @twice() -> (tensor<5xf32> {nn.output = "y"}) {
  %sum = nn.read @sum : tensor<5xf32>
  %y = nn.add %sum, %sum : (tensor<5xf32>, tensor<5xf32>) -> tensor<5xf32>
  return %y : tensor<5xf32>
}
)mlir";

TEST(Compiler, Sessions) {
  Result<Program> program = Program::parse(counter, "counter.mlir");
  ASSERT_TRUE(program) << getMessages(program.getDiagnostics());
  ASSERT_EQ(program->getEntries().size(), 2u);
  EXPECT_EQ(program->getEntries()[1].name, "twice");
  EXPECT_EQ(program->getStates()[0].name, "sum");
  EXPECT_EQ(program->getParameters()[0].name, "start");
  Result<Plan> plan = Plan::parallelize(*program, "mesh=tp=2");
  ASSERT_TRUE(plan) << getMessages(plan.getDiagnostics());
  EXPECT_EQ(getMessages(plan->start().getDiagnostics()), "parameter 'start' has no value\n");
  std::vector<float> start = {1, 2, 3, 4, 5}, x(5, 10), y(5), sum(5);
  ASSERT_TRUE(plan->setParameter("start", {ElementType::F32, {5}, start.data()}));
  HostArray input{ElementType::F32, {5}, x.data()};

  Result<Session> session = plan->start();
  ASSERT_TRUE(session) << getMessages(session.getDiagnostics());
  ASSERT_TRUE(session->run({input}, {y.data()}));
  EXPECT_EQ(y, start);
  ASSERT_TRUE(session->run({}, {y.data()}, "twice"));
  EXPECT_EQ(y, (std::vector<float>{22, 24, 26, 28, 30}));
  Result<bool> unknown = session->run({}, {y.data()}, "thrice");
  EXPECT_EQ(getMessages(unknown.getDiagnostics()),
            "the program has no entry 'thrice': expected one of 'main', 'twice'\n");
  EXPECT_FALSE(session->setState({{"sum", {ElementType::F32, {4}, x.data()}}}));
  ASSERT_TRUE(session->getState({sum.data()}));
  EXPECT_EQ(sum, (std::vector<float>{11, 12, 13, 14, 15}));
  std::string folder = testing::TempDir() + "state" + std::to_string(getpid());
  ASSERT_TRUE(session->save(folder));
  ASSERT_TRUE(session->setState({{"sum", input}}));
  ASSERT_TRUE(session->getState({sum.data()}));
  EXPECT_EQ(sum, x);

  // A session of a bundle starts where the other one was saved.
  std::string path = testing::TempDir() + "counter" + std::to_string(getpid());
  ASSERT_TRUE(plan->compile(path));
  Result<Bundle> bundle = Bundle::open(path);
  ASSERT_TRUE(bundle) << getMessages(bundle.getDiagnostics());
  EXPECT_EQ(bundle->getEntries()[1].name, "twice");
  SessionOptions options;
  options.state = folder;
  Result<Session> other = bundle->start(options);
  ASSERT_TRUE(other) << getMessages(other.getDiagnostics());
  ASSERT_TRUE(other->run({input}, {y.data()}));
  EXPECT_EQ(y, (std::vector<float>{11, 12, 13, 14, 15}));
  std::filesystem::remove_all(path);
  std::filesystem::remove_all(folder);
}

/// One that is written where another one was runs its own code, even while that is
/// loaded.
TEST(Compiler, BundlesThatAreReplaced) {
  std::string path = testing::TempDir() + "bundle" + std::to_string(getpid()), error;
  auto open = [&](const std::string &op) {
    std::string type = "tensor<4xf32>";
    Result<Program> program =
        Program::parse("func.func @main(%x: " + type + " {nn.input = \"x\"}) -> (" + type +
                       " {nn.output = \"y\"}) {\n  %0 = nn." + op + " %x : " + type +
                       "\n  return %0 : " + type + "\n}");
    Result<Plan> plan = Plan::parallelize(*program, "mesh=tp=1");
    EXPECT_TRUE(plan->compile(path));
    return rt::openBundle(path, "local", {"", std::nullopt, /*verify=*/true}, error);
  };
  std::vector<float> x = {1, -2, 3, -4}, y(4);
  auto run = [&](rt::Session &session) {
    EXPECT_TRUE(session.run(0, {{rt::DType::F32, {4}, x.data()}}, {y.data()}, {}, error))
        << error;
    return y;
  };
  auto first = open("relu");
  ASSERT_TRUE(first) << error;
  EXPECT_EQ(run(*first), (std::vector<float>{1, 0, 3, 0}));
  auto second = open("neg");
  ASSERT_TRUE(second) << error;
  EXPECT_EQ(run(*second), (std::vector<float>{-1, 2, -3, 4}));
  EXPECT_EQ(run(*first), (std::vector<float>{1, 0, 3, 0}));
  std::filesystem::remove_all(path);
}

TEST(Compiler, Errors) {
  EXPECT_FALSE(Program::parse("func.func @main("));
  EXPECT_FALSE(Program::parseFile("/nonexistent/model.mlir"));
  Result<Program> program = Program::parse(text, "mlp.mlir");
  ASSERT_TRUE(program);
  Result<Plan> none = Plan::parallelize(*program, "mesh=tp=2 tensor-parallel=model");
  EXPECT_FALSE(none);
  EXPECT_FALSE(none.getDiagnostics().empty());

  Result<Plan> plan = Plan::parallelize(*program, "mesh=tp=2");
  ASSERT_TRUE(plan);
  std::vector<float> array(64);
  Result<bool> shape = plan->setParameter("up", {ElementType::F32, {4, 8}, array.data()});
  EXPECT_FALSE(shape);
  EXPECT_EQ(getMessages(shape.getDiagnostics()),
            "parameter 'up': expected f32[8, 4], got f32[4, 8]\n");
  plan->setParameter("up", {ElementType::F32, {8, 4}, array.data()});
  plan->setParameter("down", {ElementType::F32, {4, 8}, array.data()});
  Result<bool> run = plan->run({{ElementType::I64, {3, 4}, array.data()}}, {array.data()});
  EXPECT_FALSE(run);
  EXPECT_EQ(getMessages(run.getDiagnostics()), "input 'x': expected f32[3, 4], got i64[3, 4]\n");
  EXPECT_FALSE(plan->run({}, {}));

  SessionOptions options;
  options.randomWeights = 1;
  EXPECT_EQ(getMessages(plan->start(options).getDiagnostics()),
            "a plan has its parameters: expected neither a file of weights nor random weights\n");
}

/// A safetensors file of f32 vectors of 32 elements, all alike.
std::string writeWeights(const char *name, std::vector<std::pair<std::string, float>> tensors) {
  std::string header = "{", data;
  for (const auto &[tensor, value] : tensors) {
    header += (header.size() > 1 ? "," : "") + ("\"" + tensor) +
              "\":{\"dtype\":\"F32\",\"shape\":[8,4],\"data_offsets\":[" +
              std::to_string(data.size()) + "," + std::to_string(data.size() + 128) + "]}";
    for (int i = 0; i < 32; ++i)
      data.append(reinterpret_cast<const char *>(&value), sizeof(value));
  }
  header += "}";
  uint64_t size = header.size();
  std::string path = testing::TempDir() + name + std::to_string(getpid());
  std::ofstream(path).write(reinterpret_cast<const char *>(&size), sizeof(size)) << header << data;
  return path;
}

/// Numbers of entries, ports, kinds and types that are none, of a session of `counter`.
void checkNumbers(mw_session *session, const mw_tensor &input, void *const *outputs,
                  std::string &said) {
  const char *names[] = {"sum"};
  said.clear();
  for (int64_t entry : {-1, 2}) {
    EXPECT_EQ(mw_session_entry(session, entry), nullptr);
    EXPECT_EQ(mw_session_count(session, entry, MW_INPUT), -1);
    EXPECT_EQ(mw_session_port(session, entry, MW_OUTPUT, 0), nullptr);
    EXPECT_EQ(mw_session_run(session, entry, &input, outputs, 0), 1);
    EXPECT_NE(said.find("entry " + std::to_string(entry) +
                        ": expected a number from 0 on, below 2"),
              std::string::npos)
        << said;
  }
  for (int64_t port : {-1, 1}) {
    EXPECT_EQ(mw_session_port(session, 0, MW_STATE, port), nullptr);
    EXPECT_NE(said.find("port " + std::to_string(port) + ": expected a number from 0 on, below 1"),
              std::string::npos)
        << said;
  }
  for (int32_t kind : {-1, int32_t(MW_PARAMETER), 4}) {
    EXPECT_EQ(mw_session_count(session, 0, kind), -1);
    EXPECT_NE(said.find("ports of kind " + std::to_string(kind) + ": expected MW_INPUT"),
              std::string::npos)
        << said;
  }
  mw_tensor wrong = input;
  wrong.dtype = 99;
  EXPECT_EQ(mw_session_run(session, 0, &wrong, outputs, 0), 1);
  EXPECT_NE(said.find("input 'x': expected a type of "), std::string::npos) << said;
  EXPECT_EQ(mw_session_set_state(session, 1, names, &wrong), 1);
  EXPECT_NE(said.find("state 'sum': expected a type of "), std::string::npos) << said;
  EXPECT_EQ(mw_session_set_state(session, -1, names, &input), 1);
  EXPECT_NE(said.find("states: expected 0 or more, got -1"), std::string::npos) << said;
}

TEST(Run, Sessions) {
  std::string model = testing::TempDir() + "model" + std::to_string(getpid());
  std::string bundle = testing::TempDir() + "bundle" + std::to_string(getpid());
  std::string folder = testing::TempDir() + "saved" + std::to_string(getpid());
  std::ofstream(model) << counter;
  std::string said;
  auto say = [](void *said, int32_t, const char *, const char *message) {
    *static_cast<std::string *>(said) += message;
  };
  mw_program *program = mw_program_open(model.c_str(), "mesh=tp=2", say, &said);
  ASSERT_TRUE(program) << said;
  ASSERT_EQ(mw_program_random_weights(program, 7), 0) << said;
  EXPECT_EQ(mw_program_select(program, "thrice"), 1);
  EXPECT_EQ(mw_program_select(program, "twice"), 0);
  EXPECT_EQ(mw_program_count(program, MW_INPUT), 0);
  EXPECT_STREQ(mw_program_port(program, MW_OUTPUT, 0)->name, "y");
  EXPECT_EQ(mw_program_port(program, MW_OUTPUT, 1), nullptr);
  EXPECT_EQ(mw_program_port(program, MW_PARAMETER, -1), nullptr);
  EXPECT_NE(said.find("port -1: expected a number from 0 on, below 1"), std::string::npos) << said;
  EXPECT_EQ(mw_program_count(program, MW_STATE), -1);
  EXPECT_NE(said.find("ports of kind 3: expected MW_INPUT"), std::string::npos) << said;
  ASSERT_EQ(mw_program_compile(program, bundle.c_str(), nullptr), 0) << said;
  mw_run_options options = {};
  options.state = "";
  EXPECT_EQ(mw_program_start(program, &options), nullptr);
  EXPECT_EQ(mw_bundle_start(bundle.c_str(), &options, say, &said), nullptr);
  EXPECT_NE(said.find("state: expected a folder that a session saved to, got ''"),
            std::string::npos)
      << said;
  options.state = nullptr;
  float x[5] = {1, 1, 1, 1, 1}, y[5] = {}, sum[5] = {};
  int64_t shape[] = {5};
  mw_tensor input = {MW_F32, 1, shape, x};
  void *outputs[] = {y}, *arrays[] = {sum};
  const char *names[] = {"sum"};
  for (bool isBundle : {false, true}) {
    mw_session *session = isBundle ? mw_bundle_start(bundle.c_str(), &options, say, &said)
                                   : mw_program_start(program, &options);
    ASSERT_TRUE(session) << said;
    ASSERT_EQ(mw_session_count_entries(session), 2);
    EXPECT_STREQ(mw_session_entry(session, 1), "twice");
    EXPECT_STREQ(mw_session_port(session, 0, MW_STATE, 0)->name, "sum");
    ASSERT_EQ(mw_session_set_state(session, 1, names, &input), 0) << said;
    ASSERT_EQ(mw_session_run(session, 0, &input, outputs, /*check_finite=*/1), 0) << said;
    ASSERT_EQ(mw_session_run(session, 1, nullptr, outputs, 0), 0) << said;
    EXPECT_EQ(y[4], 4);
    ASSERT_EQ(mw_session_get_state(session, arrays), 0) << said;
    EXPECT_EQ(sum[4], 2);
    ASSERT_EQ(mw_session_save(session, folder.c_str()), 0) << said;
    names[0] = "total";
    EXPECT_EQ(mw_session_set_state(session, 1, names, &input), 1);
    EXPECT_NE(said.find("the program has no state 'total'"), std::string::npos) << said;
    names[0] = "sum";
    EXPECT_EQ(mw_session_is_stuck(session), 0);
    checkNumbers(session, input, outputs, said);
    mw_session_close(session);
  }
  // A bundle without weights asks for some.
  ASSERT_EQ(mw_program_compile_without_weights(program, bundle.c_str(), nullptr), 0) << said;
  EXPECT_FALSE(mw_bundle_start(bundle.c_str(), &options, say, &said));
  EXPECT_NE(said.find("the bundle has no weights"), std::string::npos) << said;
  uint64_t seed = 7;
  options.random_weights = &seed;
  mw_session *drawn = mw_bundle_start(bundle.c_str(), &options, say, &said);
  ASSERT_TRUE(drawn) << said;
  ASSERT_EQ(mw_session_run(drawn, 0, &input, outputs, 0), 0) << said;
  EXPECT_EQ(mw_session_run_on_gpu(drawn, 0, &input, outputs, 0, 0), 1);
  EXPECT_NE(said.find("a call on GPU 0: expected a program for GPUs"), std::string::npos) << said;
  mw_session_close(drawn);
  options.graphs = "never";
  EXPECT_FALSE(mw_bundle_start(bundle.c_str(), &options, say, &said));
  EXPECT_NE(said.find("graphs: expected on, off or auto, got 'never'"), std::string::npos) << said;
  options = {};
  options.state = folder.c_str();
  ASSERT_EQ(mw_program_run(program, nullptr, outputs, &options), 0) << said;
  EXPECT_EQ(y[4], 4);
  mw_program_close(program);
  for (const std::string &path : {model, bundle, folder})
    std::filesystem::remove_all(path);
}

TEST(Run, WeightsAreTakenWholeOrNotAtAll) {
  std::string path = testing::TempDir() + "two" + std::to_string(getpid());
  std::ofstream(path) << R"mlir(
func.func @main(%x: tensor<1x4xf32> {nn.input = "x"}, %u: tensor<8x4xf32> {nn.parameter = "u"},
                %v: tensor<8x4xf32> {nn.parameter = "v"}) -> (tensor<1x8xf32> {nn.output = "y"}) {
  %0 = nn.linear %x, %u : (tensor<1x4xf32>, tensor<8x4xf32>) -> tensor<1x8xf32>
  %1 = nn.linear %x, %v : (tensor<1x4xf32>, tensor<8x4xf32>) -> tensor<1x8xf32>
  %2 = nn.add %0, %1 : (tensor<1x8xf32>, tensor<1x8xf32>) -> tensor<1x8xf32>
  return %2 : tensor<1x8xf32>
}
)mlir";
  std::string good = writeWeights("good", {{"u", 1}, {"v", 2}}),
              bad = writeWeights("bad", {{"u", 5}});
  float x[4] = {1, 1, 1, 1}, y[8] = {};
  int64_t shape[] = {1, 4};
  mw_tensor input = {0, 2, shape, x};
  void *outputs[] = {y};
  for (const char *options : {static_cast<const char *>(nullptr), "mesh=tp=2"}) {
    std::string said;
    auto say = [](void *said, int32_t, const char *, const char *message) {
      *static_cast<std::string *>(said) += message;
    };
    mw_program *program = mw_program_open(path.c_str(), options, say, &said);
    ASSERT_TRUE(program) << said;
    ASSERT_EQ(mw_program_load_weights(program, good.c_str()), 0) << said;
    EXPECT_EQ(mw_program_load_weights(program, bad.c_str()), 1);
    EXPECT_NE(said.find("has no tensor 'v'"), std::string::npos) << said;
    mw_run_options running = {};
    // For another processor everything is read again.
    for (const char *cpu : {static_cast<const char *>(nullptr), "cpu:x86-64-v3"}) {
      running.target = cpu;
      EXPECT_EQ(mw_program_run(program, &input, outputs, &running), 0) << said;
      EXPECT_EQ(y[0], 12);
      EXPECT_EQ(mw_program_is_stuck(program), 0);
    }
    mw_program_close(program);
  }
  for (const std::string &file : {path, good, bad})
    unlink(file.c_str());
}

} // namespace
