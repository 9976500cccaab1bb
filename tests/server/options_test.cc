#include "server/options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "engine/runtime/available_memory.h"

namespace voxserve::options_test {
namespace {

using testing::HasSubstr;
using testing::Not;

std::string ErrorOf(const std::vector<std::string>& args) {
  const absl::StatusOr<CommandLine> line = ParseCommandLine(args);
  EXPECT_FALSE(line.ok());
  const std::string message(line.status().message());
  EXPECT_THAT(message, Not(HasSubstr("\n"))) << "one line";
  return message;
}

TEST(OptionsTest, DefaultsServe) {
  const absl::StatusOr<CommandLine> line = ParseCommandLine({"--model_repository", "models"});
  ASSERT_TRUE(line.ok()) << line.status();
  EXPECT_EQ(line->action, CommandLine::Action::kServe);
  EXPECT_EQ(line->options.model_repository, "models");
  EXPECT_EQ(line->options.host, "127.0.0.1");
  EXPECT_EQ(line->options.port, 8500);
  EXPECT_EQ(line->options.http_port, 8080);
  EXPECT_EQ(line->options.max_message_bytes, 64 << 20);
  EXPECT_EQ(line->options.plan_dir, "");
  EXPECT_FALSE(line->options.tune_on_load);
}

TEST(OptionsTest, ReadsEveryFlag) {
  const absl::StatusOr<CommandLine> line = ParseCommandLine({"--model_repository=m",
                                                             "-host=0.0.0.0",
                                                             "--port=0",
                                                             "--http_port",
                                                             "0",
                                                             "--threads=3",
                                                             "--max_message_bytes=2MiB",
                                                             "--max_queue_requests=9",
                                                             "--max_queue_bytes=3GiB",
                                                             "--max_grid_bytes=1024",
                                                             "--devices=cuda:1",
                                                             "--streams_per_device=3",
                                                             "--model_poll_seconds=2.5",
                                                             "--device_memory_limit=8GiB",
                                                             "--max_connection_idle=90s",
                                                             "--max_connection_age=inf",
                                                             "--grpc_memory_bytes=512MiB",
                                                             "--memory_limit=12GiB",
                                                             "--drain_timeout=1500ms",
                                                             "--stuck_batch_time=inf",
                                                             "--stuck_batch_factor=12.5",
                                                             "--max_request_time=7s",
                                                             "--log_level=DEBUG",
                                                             "--log_format=JSON",
                                                             "--plan_dir=p/q",
                                                             "--tune_on_load=true",
                                                             "--admin_host=::1",
                                                             "--admin_port=8502",
                                                             "--tls_certificate=c.pem",
                                                             "--tls_key=k.pem",
                                                             "--tls_client_ca=r.pem",
                                                             "--auth_tokens=tokens",
                                                             "--insecure_tokens",
                                                             "--shared_memory_prefix=/mine-",
                                                             "--deterministic",
                                                             "--captured_batches=false"});
  ASSERT_TRUE(line.ok()) << line.status();
  const Options& options = line->options;
  EXPECT_EQ(options.model_repository, "m");
  EXPECT_EQ(options.host, "0.0.0.0");
  EXPECT_EQ(options.port, 0);
  EXPECT_EQ(options.http_port, 0);
  EXPECT_EQ(options.threads, 3);
  EXPECT_EQ(options.max_message_bytes, 2 << 20);
  EXPECT_EQ(options.shared_memory_prefix, "/mine-");
  EXPECT_EQ(options.max_queue_requests, 9);
  EXPECT_EQ(options.max_queue_bytes, int64_t{3} << 30);
  EXPECT_EQ(options.max_grid_bytes, 1024);
  EXPECT_EQ(options.devices, "cuda:1");
  EXPECT_EQ(options.streams_per_device, 3);
  EXPECT_EQ(options.model_poll_seconds, 2.5);
  EXPECT_EQ(options.device_memory_limit, int64_t{8} << 30);
  EXPECT_EQ(options.grpc_memory_bytes, 512 << 20);
  EXPECT_EQ(options.memory_limit, int64_t{12} << 30);
  EXPECT_EQ(options.max_connection_idle, absl::Seconds(90));
  EXPECT_EQ(options.max_connection_age, absl::InfiniteDuration());
  EXPECT_EQ(options.drain_timeout, absl::Milliseconds(1500));
  EXPECT_EQ(options.stuck_batch_time, absl::InfiniteDuration());
  EXPECT_EQ(options.stuck_batch_factor, 12.5);
  EXPECT_EQ(options.max_request_time, absl::Seconds(7));
  EXPECT_EQ(options.log_level, LogLevel::kDebug);
  EXPECT_EQ(options.log_format, LogFormat::kJson);
  EXPECT_EQ(options.plan_dir, "p/q");
  EXPECT_TRUE(options.tune_on_load);
  EXPECT_TRUE(options.deterministic);
  EXPECT_FALSE(options.captured_batches);
  EXPECT_TRUE(Options().captured_batches);
  EXPECT_EQ(options.admin_host, "::1");
  EXPECT_EQ(options.admin_port, 8502);
  EXPECT_EQ(options.tls.certificate, "c.pem");
  EXPECT_EQ(options.tls.key, "k.pem");
  EXPECT_EQ(options.tls.client_ca, "r.pem");
  EXPECT_EQ(options.auth_tokens, "tokens");
  EXPECT_TRUE(options.insecure_tokens);
}

TEST(OptionsTest, TheAdminPortIsTheOneAboveByDefault) {
  Options options;
  EXPECT_EQ(options.Resolved().admin_port, 8501);
  options.port = 0;
  EXPECT_EQ(options.Resolved().admin_port, 0);
  options.admin_port = 7;
  EXPECT_EQ(options.Resolved().admin_port, 7);
  EXPECT_EQ(ParseCommandLine({"--hash_token"})->action, CommandLine::Action::kHashToken);
}

TEST(OptionsTest, ASwitchNeedsNoValueAndTakesNoneFromTheNextArgument) {
  const auto tunes_with = [](const std::vector<std::string>& args) {
    const absl::StatusOr<CommandLine> line = ParseCommandLine(args);
    EXPECT_TRUE(line.ok()) << line.status();
    return line.ok() && line->options.tune_on_load && line->options.model_repository == "m";
  };
  EXPECT_TRUE(tunes_with({"--model_repository=m", "--tune_on_load"}));
  EXPECT_TRUE(tunes_with({"--tune_on_load", "--model_repository", "m"}));
  EXPECT_FALSE(tunes_with({"--tune_on_load=false", "--model_repository", "m"}));
  EXPECT_THAT(ErrorOf({"--tune_on_load", "false"}), HasSubstr("\"false\" is not a flag"));
  EXPECT_THAT(ErrorOf({"--tune_on_load=perhaps"}), HasSubstr("--tune_on_load is 'perhaps', must be true or false"));
}

TEST(OptionsTest, AFolderOfPlansIsAFolderOrNotThereYet) {
  Options options;
  options.model_repository = "m";
  options.plan_dir = testing::TempDir();
  EXPECT_TRUE(options.Validate().ok());
  options.plan_dir = testing::TempDir() + "/not/there/yet";
  EXPECT_TRUE(options.Validate().ok());
  options.plan_dir = "/dev/null";
  EXPECT_THAT(std::string(options.Validate().message()), HasSubstr("--plan_dir is '/dev/null', must be a folder"));
}

TEST(OptionsTest, AsksForWhatItNeeds) { EXPECT_THAT(ErrorOf({}), HasSubstr("--model_repository is required")); }

TEST(OptionsTest, UnknownFlagsGetTheNearest) {
  EXPECT_THAT(ErrorOf({"--prot=1"}), HasSubstr("unknown flag --prot (did you mean --port?)"));
  EXPECT_THAT(ErrorOf({"--versoin"}), HasSubstr("did you mean --version?"));
  const std::string far = ErrorOf({"--completely_different"});
  EXPECT_THAT(far, HasSubstr("unknown flag --completely_different"));
  EXPECT_THAT(far, Not(HasSubstr("did you mean")));
  EXPECT_THAT(ErrorOf({"--flagfile=/etc/passwd"}), HasSubstr("unknown flag")) << "no flag reads files of flags";
}

TEST(OptionsTest, BadValuesNameTheFlagAndTheValue) {
  EXPECT_THAT(ErrorOf({"--port=many"}), HasSubstr("--port is 'many', must be a number from 0 to 65535"));
  EXPECT_THAT(ErrorOf({"--model_poll_seconds=often"}),
              HasSubstr("--model_poll_seconds is 'often', must be a number from 0 to 86400"));
  EXPECT_THAT(ErrorOf({"--drain_timeout=5"}), HasSubstr("--drain_timeout is '5', must be a time"));
  EXPECT_THAT(ErrorOf({"--max_message_bytes=5MB"}), HasSubstr("KiB, MiB or GiB"));
  EXPECT_THAT(ErrorOf({"--max_message_bytes=-1"}), HasSubstr("KiB, MiB or GiB"));
  EXPECT_THAT(ErrorOf({"--max_queue_bytes=9999999999GiB"}), HasSubstr("--max_queue_bytes"));
  EXPECT_THAT(ErrorOf({"--log_level=loud"}), HasSubstr("--log_level is 'loud', must be debug, info, warning or error"));
  EXPECT_THAT(ErrorOf({"--log_format=xml"}), HasSubstr("--log_format is 'xml', must be text or json"));
  EXPECT_THAT(ErrorOf({"--model_repository"}), HasSubstr("needs a value"));
  EXPECT_THAT(ErrorOf({"models"}), HasSubstr("\"models\" is not a flag"));
  EXPECT_THAT(ErrorOf({"serve", "models"}), HasSubstr("write --model_repository=FOLDER"));
}

TEST(OptionsTest, ValuesOutOfRangeNameTheRange) {
  Options good;
  good.model_repository = "m";
  ASSERT_TRUE(good.Validate().ok());
  const auto error_with = [&](auto change) {
    Options options = good;
    change(options);
    const absl::Status status = options.Validate();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  EXPECT_THAT(error_with([](Options& o) { o.port = 65536; }), HasSubstr("--port is '65536'"));
  EXPECT_THAT(error_with([](Options& o) { o.http_port = -1; }), HasSubstr("--http_port is '-1'"));
  EXPECT_THAT(error_with([](Options& o) { o.http_port = o.port; }), HasSubstr("must differ"));
  EXPECT_THAT(error_with([](Options& o) { o.http_port = o.port + 1; }), HasSubstr("by default the one above --port"));
  EXPECT_THAT(error_with([](Options& o) { o.admin_port = o.port; }), HasSubstr("--admin_port and --port are both"));
  EXPECT_THAT(error_with([](Options& o) { o.admin_port = -2; }), HasSubstr("--admin_port is '-2'"));
  EXPECT_THAT(error_with([](Options& o) { o.admin_port = 65536; }), HasSubstr("--admin_port is '65536'"));
  EXPECT_THAT(error_with([](Options& o) { o.port = 65535; }), HasSubstr("no port is above --port=65535"));
  EXPECT_THAT(error_with([](Options& o) { o.admin_host = ""; }), HasSubstr("--admin_host is empty"));
  EXPECT_THAT(error_with([](Options& o) { o.tls.certificate = "c"; }), HasSubstr("--tls_certificate needs --tls_key"));
  EXPECT_THAT(error_with([](Options& o) { o.tls.key = "k"; }), HasSubstr("--tls_key needs --tls_certificate"));
  EXPECT_THAT(error_with([](Options& o) { o.tls.client_ca = "r"; }), HasSubstr("--tls_client_ca needs"));
  EXPECT_THAT(error_with([](Options& o) { o.auth_tokens = "t"; }), HasSubstr("--auth_tokens needs --tls_certificate"));
  EXPECT_THAT(error_with([](Options& o) { o.insecure_tokens = true; }), HasSubstr("needs --auth_tokens"));
  EXPECT_THAT(error_with([](Options& o) { o.threads = -1; }), HasSubstr("--threads is '-1'"));
  EXPECT_THAT(error_with([](Options& o) { o.max_message_bytes = 1000; }), HasSubstr("--max_message_bytes is '1000'"));
  EXPECT_THAT(error_with([](Options& o) { o.shared_memory_prefix = "mine"; }),
              HasSubstr("--shared_memory_prefix is 'mine'"));
  EXPECT_THAT(error_with([](Options& o) { o.shared_memory_prefix = "/a/b"; }), HasSubstr("begin with a slash"));
  EXPECT_THAT(error_with([](Options& o) { o.max_message_bytes = int64_t{1} << 31; }), HasSubstr("2147483647"));
  EXPECT_THAT(error_with([](Options& o) { o.max_queue_requests = 0; }), HasSubstr("--max_queue_requests is '0'"));
  EXPECT_THAT(error_with([](Options& o) { o.max_queue_bytes = 5; }), HasSubstr("--max_queue_bytes is '5'"));
  EXPECT_THAT(error_with([](Options& o) { o.max_grid_bytes = -5; }), HasSubstr("--max_grid_bytes is '-5'"));
  EXPECT_THAT(error_with([](Options& o) { o.streams_per_device = 0; }), HasSubstr("--streams_per_device is '0'"));
  EXPECT_THAT(error_with([](Options& o) { o.device_memory_limit = -1; }), HasSubstr("--device_memory_limit is '-1'"));
  EXPECT_THAT(error_with([](Options& o) { o.grpc_memory_bytes = 5; }), HasSubstr("--grpc_memory_bytes is '5'"));
  EXPECT_THAT(error_with([](Options& o) { o.max_connection_idle = absl::ZeroDuration(); }),
              HasSubstr("--max_connection_idle is '0', must be a time such as 10s or 500ms, of at least 1ms"));
  EXPECT_THAT(error_with([](Options& o) { o.max_connection_age = -absl::Seconds(1); }),
              HasSubstr("--max_connection_age is '-1s', must be a time such as 10s or 500ms, of at least 1ms"));
  EXPECT_THAT(error_with([](Options& o) { o.drain_timeout = -absl::Seconds(1); }),
              HasSubstr("--drain_timeout is '-1s'"));
  EXPECT_THAT(error_with([](Options& o) { o.stuck_batch_time = absl::ZeroDuration(); }),
              HasSubstr("--stuck_batch_time is '0', must be a time such as 10s or 500ms, of at least 1ms"));
  EXPECT_THAT(error_with([](Options& o) { o.max_request_time = absl::ZeroDuration(); }),
              HasSubstr("--max_request_time is '0'"));
  EXPECT_THAT(error_with([](Options& o) { o.stuck_batch_factor = -1; }), HasSubstr("--stuck_batch_factor is '-1'"));
  EXPECT_THAT(error_with([](Options& o) { o.stuck_batch_factor = std::nan(""); }), HasSubstr("0 to 1000000"));
  EXPECT_THAT(error_with([](Options& o) { o.model_poll_seconds = -0.5; }), HasSubstr("--model_poll_seconds is '-0.5'"));
  EXPECT_THAT(error_with([](Options& o) { o.model_poll_seconds = std::nan(""); }), HasSubstr("0 to 86400"));
  EXPECT_THAT(error_with([](Options& o) { o.model_poll_seconds = 86401; }), HasSubstr("0 to 86400"));
  EXPECT_THAT(error_with([](Options& o) { o.host.clear(); }), HasSubstr("--host"));
  Options any_ports = good;
  any_ports.port = any_ports.http_port = 0;
  EXPECT_TRUE(any_ports.Validate().ok());
}

TEST(OptionsTest, TheMemoryLimitDecidesWhatNobodySaid) {
  constexpr int64_t kMiB = 1 << 20;
  Options options;
  options.model_repository = "m";
  const Options by_machine = options.Resolved();
  EXPECT_GE(by_machine.memory_limit, 512 * kMiB);
  EXPECT_LE(by_machine.memory_limit, AvailableMemoryBytes());
  options.memory_limit = 512 * kMiB;
  Options small = options.Resolved();
  EXPECT_EQ(small.grpc_memory_bytes, 128 * kMiB);
  EXPECT_EQ(small.max_queue_bytes, 128 * kMiB);
  EXPECT_GT(small.BudgetBytes(), 128 * kMiB);
  EXPECT_LT(small.BudgetBytes(), 512 * kMiB - small.grpc_memory_bytes);
  EXPECT_TRUE(options.Validate().ok()) << options.Validate();
  EXPECT_TRUE(small.Validate().ok()) << "what it resolves to is valid";
  options.memory_limit = 64 * 1024 * kMiB;
  const Options large = options.Resolved();
  EXPECT_EQ(large.grpc_memory_bytes, 2048 * kMiB);
  EXPECT_EQ(large.max_queue_bytes, 1024 * kMiB);
  options.grpc_memory_bytes = 300 * kMiB;
  EXPECT_EQ(options.Resolved().grpc_memory_bytes, 300 * kMiB) << "what was said stays";
}

TEST(OptionsTest, LimitsMustFitTheMemoryLimit) {
  EXPECT_THAT(ErrorOf({"--model_repository=m", "--memory_limit=511MiB"}),
              HasSubstr("--memory_limit is '511MiB', must be 0 or at least 512MiB"));
  EXPECT_THAT(ErrorOf({"--model_repository=m", "--memory_limit=much"}), HasSubstr("KiB, MiB or GiB"));
  EXPECT_TRUE(ParseCommandLine({"--model_repository=m", "--memory_limit=512MiB"}).ok());
  const auto error_with = [](auto change) {
    Options options;
    options.model_repository = "m";
    options.memory_limit = 1 << 30;
    change(options);
    return std::string(options.Validate().message());
  };
  EXPECT_EQ(error_with([](Options&) {}), "");
  EXPECT_THAT(error_with([](Options& o) { o.grpc_memory_bytes = 600 << 20; }),
              HasSubstr("--grpc_memory_bytes is '600MiB', must be at most half of --memory_limit, which is 1GiB"));
  EXPECT_THAT(error_with([](Options& o) { o.max_queue_bytes = 600 << 20; }),
              HasSubstr("--max_queue_bytes is '600MiB'"));
  EXPECT_THAT(error_with([](Options& o) { o.max_message_bytes = 300 << 20; }),
              HasSubstr("at most half of --memory_limit, which is 1GiB"))
      << "two messages do not fit";
  EXPECT_THAT(error_with([](Options& o) {
                o.memory_limit = 512 << 20;
                o.grpc_memory_bytes = 256 << 20;
              }),
              HasSubstr("--memory_limit is '512MiB', must be more: it leaves 32MiB beside"));
}

TEST(OptionsTest, HelpAndVersionWinOverTheRest) {
  EXPECT_EQ(ParseCommandLine({"--help"})->action, CommandLine::Action::kHelp);
  EXPECT_EQ(ParseCommandLine({"-h"})->action, CommandLine::Action::kHelp);
  EXPECT_EQ(ParseCommandLine({"--version"})->action, CommandLine::Action::kVersion);
}

TEST(OptionsTest, HelpTeachesEveryFlag) {
  const std::string help = HelpText();
  const std::vector<Flag> flags = Options().Flags();
  for (const Flag& flag : flags) {
    EXPECT_THAT(help, HasSubstr("\n  --" + flag.name + (flag.value_name.empty() ? "" : " " + flag.value_name)));
    EXPECT_EQ(flag.help.back(), '.') << flag.name;
  }
  EXPECT_GT(flags.size(), 40u);  // server/README.md has the names (tests/integration/test_readme.py)
  EXPECT_THAT(help, HasSubstr("--max_message_bytes BYTES  (default 64MiB)"));
  EXPECT_THAT(help, HasSubstr("--port N  (default 8500)"));
  EXPECT_THAT(help, HasSubstr("--drain_timeout TIME  (default 30s)"));
  EXPECT_THAT(help, HasSubstr("--log_level debug|info|warning|error  (default info)"));
  EXPECT_THAT(help, HasSubstr("--log_format text|json  (default text)"));
  EXPECT_THAT(help, HasSubstr("--tune_on_load  (default false)"));
  EXPECT_THAT(help, Not(HasSubstr("flagfile")));
  size_t start = 0;
  for (size_t end = help.find('\n'); end != std::string::npos; start = end + 1, end = help.find('\n', start)) {
    EXPECT_LE(end - start, 100u) << help.substr(start, end - start);
  }
}

// Sets one flag after the other to another value than its default. Then all members of the others are as before.
TEST(OptionsTest, EachFlagSetsAMemberOfItsOwn) {
  for (size_t i = 0; i < Options().Flags().size(); ++i) {
    Options options;
    const std::vector<Flag> flags = options.Flags();
    const std::vector<std::string> others = {"/other", "7", "false", "true", "2MiB", "7s", "error", "json"};
    EXPECT_TRUE(std::any_of(others.begin(), others.end(), [&](const std::string& other) {
      return flags[i].parse(other) && flags[i].is_in_range() && flags[i].value() != flags[i].default_value;
    })) << flags[i].name;
    for (size_t j = 0; j < flags.size(); ++j) {
      EXPECT_EQ(flags[j].value() != flags[j].default_value && flags[j].is_in_range(), i == j)
          << flags[i].name << " " << flags[j].name;
    }
  }
}

}  // namespace
}  // namespace voxserve::options_test
