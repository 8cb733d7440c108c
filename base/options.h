// Declares options once for the INI config file, the command line, --help and the reference page.
// `[policy] name = flexrr` in the file is `--policy.name=flexrr` on the command line.
//
// Every mistake of a user becomes kInvalid with one line. The line names the place (file:line or
// the option), the key and, where it is unknown, the nearest known one. Nothing throws.
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "base/time.h"

namespace lockstep {

// The text form of values of one kind.
template <class T>
struct OptionType {
  std::string placeholder;  // in --help: "N", "TIME"
  std::string form;         // in words: "a whole number, 1 to 1024"
  // The error's message completes a line that already names place, key and value.
  std::function<Result<T>(std::string_view)> parse;
  // The form is canonical: parse(format(v)) is v, exactly.
  std::function<std::string(const T&)> format;
};

OptionType<std::uint32_t> Count(std::uint32_t min, std::uint32_t max);
OptionType<std::uint64_t> WideCount(std::uint64_t min, std::uint64_t max);
// A finite number of [min, max], or [min, max) when `below` is set.
OptionType<double> Number(double min, double max, bool below = false);
// Seconds in the program; in text a number with its unit: 20ms, 10s, 1.5s, 2min, 1h.
OptionType<double> DurationSeconds(double min, double max);
// Bytes: 4MiB, 512KiB, 1GiB or plain 1048576.
OptionType<std::uint64_t> Bytes(std::uint64_t min, std::uint64_t max);
OptionType<bool> TrueOrFalse();
OptionType<std::string> Choice(std::initializer_list<std::string_view> names);
// Any text of printable UTF-8; `form` says what it should be.
OptionType<std::string> Text(std::string placeholder, std::string form);
// Comma-separated; may be empty.
OptionType<std::vector<std::uint32_t>> Counts(std::uint32_t min, std::uint32_t max,
                                              std::size_t most);

// Parses and formats like DurationSeconds, for other notations that contain times.
Result<double> ParseDurationSeconds(std::string_view text);
std::string FormatDurationSeconds(double seconds);

// The declared options of a program. A key with a dot ("policy.name") may stand in the file and on
// the command line, one without on the command line only. Targets must outlive the table; they hold
// the defaults when they are declared.
class OptionTable {
 public:
  OptionTable();
  ~OptionTable();
  OptionTable(const OptionTable&) = delete;
  OptionTable& operator=(const OptionTable&) = delete;

  // Options declared from here on are shown under this title; `about` is one sentence.
  void Group(std::string title, std::string about);

  template <class T>
  void Add(std::string key, T* target, OptionType<T> type, std::string help);
  // May be given more than once; command line only.
  template <class T>
  void AddRepeatable(std::string key, std::vector<T>* target, OptionType<T> type, std::string help);
  // Takes no value; command line only.
  void AddSwitch(std::string key, bool* target, std::string help);

  // Each reads, checks and assigns. A value from an earlier call stands: read the command line
  // first, then the file. Overruled values are checked all the same. After an error the state of
  // the targets is undefined.
  Status ReadCommandLine(std::span<const std::string> arguments);
  Status ReadFile(const std::string& path);
  // `name` stands for the file in messages.
  Status ReadText(std::string_view text, const std::string& name);
  // Sets it as --key=value does.
  Status Set(const std::string& key, const std::string& value);

  // Whether one of the functions above gave the key a value.
  bool Given(const std::string& key) const;

  // Groups with every option's default, form and explanation.
  std::string Help() const;
  // The dotted options with their present values, as ReadText takes them.
  std::string ToIni() const;
  // The dotted options as Markdown tables, one for each group, with their values at declaration.
  std::string Markdown() const;

 private:
  enum class Arity { kOne, kRepeatable, kSwitch };
  struct Option {
    std::string key;
    std::string help;
    std::string placeholder;
    std::string form;
    std::string default_text;
    Arity arity = Arity::kOne;
    std::size_t group = 0;
    std::function<Status(std::string_view text, bool assign)> take;
    std::function<std::string()> show;
  };
  struct Impl;

  void Declare(Option option);
  Status Take(const std::string& key, std::string_view value, const std::string& source,
              const std::string& place);

  std::unique_ptr<Impl> impl_;
};

// "program": ..., shell-style arguments without the program's name.
std::vector<std::string> Arguments(int argc, const char* const* argv);

template <class T>
void OptionTable::Add(std::string key, T* target, OptionType<T> type, std::string help) {
  Option option;
  option.key = std::move(key);
  option.help = std::move(help);
  option.placeholder = type.placeholder;
  option.form = type.form;
  option.default_text = type.format(*target);
  option.take = [target, parse = type.parse](std::string_view text, bool assign) -> Status {
    Result<T> value = parse(text);
    if (!value) return value.error();
    if (assign) *target = *std::move(value);
    return {};
  };
  option.show = [target, format = type.format] { return format(*target); };
  Declare(std::move(option));
}

template <class T>
void OptionTable::AddRepeatable(std::string key, std::vector<T>* target, OptionType<T> type,
                                std::string help) {
  Option option;
  option.key = std::move(key);
  option.help = std::move(help);
  option.placeholder = type.placeholder;
  option.form = type.form;
  option.arity = Arity::kRepeatable;
  option.take = [target, parse = type.parse](std::string_view text, bool assign) -> Status {
    Result<T> value = parse(text);
    if (!value) return value.error();
    if (assign) target->push_back(*std::move(value));
    return {};
  };
  Declare(std::move(option));
}

}  // namespace lockstep
