#include "base/options.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/program_options.hpp>
#include <map>
#include <sstream>

#include "base/ini.h"
#include "base/regular_file.h"
#include "base/suggest.h"

namespace lockstep {
namespace {

namespace po = boost::program_options;

constexpr unsigned kHelpWidth = 100;

Error Invalid(std::string message) { return {ErrorCode::kInvalid, std::move(message)}; }

bool IsDotted(const std::string& key) { return key.find('.') != std::string::npos; }

std::string MarkdownCell(const std::string& text) {
  std::string cell;
  for (const char c : text) {
    if (c == '|') cell += '\\';
    cell += c;
  }
  return cell;
}

}  // namespace

struct OptionTable::Impl {
  struct GroupText {
    std::string title;
    std::string about;
  };

  std::vector<GroupText> groups;
  std::vector<Option> options;                 // in order of declaration
  std::map<std::string, std::size_t> by_key;   // index into options
  std::map<std::string, std::string> sources;  // sources of the keys that were given

  const Option* Find(const std::string& key) const {
    const auto at = by_key.find(key);
    return at == by_key.end() ? nullptr : &options[at->second];
  }

  std::vector<std::string> Keys(bool dotted_only) const {
    std::vector<std::string> keys;
    for (const Option& option : options) {
      if (!dotted_only || IsDotted(option.key)) keys.push_back(option.key);
    }
    return keys;
  }

  std::vector<std::string> Sections() const {
    std::vector<std::string> sections;
    for (const std::string& key : Keys(true)) {
      const std::string section = key.substr(0, key.rfind('.'));
      if (sections.empty() || sections.back() != section) sections.push_back(section);
    }
    return sections;
  }

  // The choices for an unknown key that is near none: the keys of its section, else the sections;
  // `undotted` for a key without a section.
  std::string Choices(const std::string& key, std::string_view undotted) const {
    if (!IsDotted(key)) return std::string(undotted);
    const std::string section = key.substr(0, key.rfind('.'));
    std::vector<std::string> names;
    for (const std::string& known : Keys(true)) {
      const auto dot = known.rfind('.');
      if (known.substr(0, dot) == section) names.push_back(known.substr(dot + 1));
    }
    return names.empty() ? "; the sections are " + Listed(Sections())
                         : fmt::format("; {} has {}", section, Listed(names));
  }

  // The options in Boost's form, for parsing and for --help.
  po::options_description Describe() const {
    po::options_description all(kHelpWidth, kHelpWidth / 2);
    for (std::size_t group = 0; group < groups.size(); ++group) {
      const auto& [title, about] = groups[group];
      po::options_description part(about.empty() ? title : title + ": " + about, kHelpWidth,
                                   kHelpWidth / 2);
      for (const Option& option : options) {
        if (option.group != group) continue;
        if (option.arity == Arity::kSwitch) {
          part.add_options()(option.key.c_str(), option.help.c_str());
          continue;
        }
        auto* value = po::value<std::string>()->value_name(option.placeholder);
        if (!option.default_text.empty()) value->default_value(option.default_text);
        const std::string help = fmt::format("{} [{}]", option.help, option.form);
        part.add_options()(option.key.c_str(), value, help.c_str());
      }
      all.add(part);
    }
    return all;
  }
};

OptionTable::OptionTable() : impl_(std::make_unique<Impl>()) {}
OptionTable::~OptionTable() = default;

void OptionTable::Group(std::string title, std::string about) {
  impl_->groups.push_back({std::move(title), std::move(about)});
}

void OptionTable::Declare(Option option) {
  LOCKSTEP_CHECK(!impl_->groups.empty(), "option {} has no group", option.key);
  option.group = impl_->groups.size() - 1;
  const bool fresh = impl_->by_key.emplace(option.key, impl_->options.size()).second;
  LOCKSTEP_CHECK(fresh, "option {} is declared twice", option.key);
  impl_->options.push_back(std::move(option));
}

void OptionTable::AddSwitch(std::string key, bool* target, std::string help) {
  Option option;
  option.key = std::move(key);
  option.help = std::move(help);
  option.arity = Arity::kSwitch;
  option.take = [target](std::string_view, bool assign) -> Status {
    if (assign) *target = true;
    return {};
  };
  Declare(std::move(option));
}

Status OptionTable::Take(const std::string& key, std::string_view value, const std::string& source,
                         const std::string& place) {
  const Option* option = impl_->Find(key);
  LOCKSTEP_CHECK(option != nullptr, "unknown option {}", key);
  const auto given = impl_->sources.emplace(key, source).first;
  const Status taken = option->take(value, given->second == source);
  if (taken) return {};
  return Invalid(fmt::format("{} = {}: {}", place, Quoted(value), taken.error().message));
}

Status OptionTable::ReadCommandLine(std::span<const std::string> arguments) {
  const std::string source = "the command line";
  const po::options_description description = impl_->Describe();
  std::vector<po::option> parsed;
  try {
    // Abbreviations are not allowed: one that works today is ambiguous tomorrow.
    const int style = po::command_line_style::allow_long | po::command_line_style::long_allow_next |
                      po::command_line_style::long_allow_adjacent;
    parsed = po::command_line_parser({arguments.begin(), arguments.end()})
                 .options(description)
                 .style(style)
                 .allow_unregistered()
                 .run()
                 .options;
  } catch (const po::invalid_command_line_syntax& e) {
    const bool extra = e.kind() == po::invalid_syntax::extra_parameter;
    return Invalid(Printable(e.get_option_name()) +
                   (extra ? ": takes no value" : ": needs a value"));
  } catch (const po::error& e) {
    return Invalid("the command line: " + Printable(e.what()));
  }
  for (const po::option& item : parsed) {
    if (item.unregistered) {
      // Boost may keep "=value" in the name of an unknown option, and lone dashes.
      const std::string shown =
          item.original_tokens.empty() ? item.string_key : item.original_tokens.front();
      const std::string name = shown.substr(0, shown.find('='));
      std::string bare = name.substr(std::min(name.find_first_not_of('-'), name.size()));
      const std::string near = Nearest(bare, impl_->Keys(false));
      return Invalid(fmt::format("{}: unknown option{}",
                                 Quoted(name).substr(1, Quoted(name).size() - 2),
                                 near.empty() ? impl_->Choices(bare, "; --help lists the options")
                                              : fmt::format(" (did you mean \"--{}\"?)", near)));
    }
    if (item.string_key.empty()) {
      const std::string word = item.value.empty() ? "" : item.value.front();
      return Invalid(Quoted(word) + ": unexpected argument (options are written --key=value)");
    }
    const Option* option = impl_->Find(item.string_key);
    LOCKSTEP_CHECK(option != nullptr, "unknown option {}", item.string_key);
    if (option->arity != Arity::kRepeatable && Given(option->key)) {
      return Invalid(fmt::format("--{}: given twice", option->key));
    }
    const std::string value = item.value.empty() ? "" : item.value.front();
    const Status taken = Take(option->key, value, source, "--" + option->key);
    if (!taken) return taken;
  }
  return {};
}

Status OptionTable::ReadFile(const std::string& path) {
  const Result<std::string> text = ReadRegularFile(path, kMaxIniBytes);
  if (!text) return Invalid(text.error().message);
  return ReadText(*text, path);
}

Status OptionTable::ReadText(std::string_view text, const std::string& name) {
  const auto lines = ScanIni(text, name);
  if (!lines) return lines.error();
  const std::vector<std::string> keys = impl_->Keys(true);
  const std::vector<std::string> sections = impl_->Sections();
  std::map<std::string, int> first_line;
  for (std::size_t i = 0; i < lines->size(); ++i) {
    const IniLine& line = (*lines)[i];
    const std::string place = fmt::format("{}:{}: ", name, line.number);
    if (line.key.empty()) {
      // When a key follows it, the error about that key is the clearer one.
      const bool followed = i + 1 < lines->size() && !(*lines)[i + 1].key.empty();
      if (!followed && std::ranges::find(sections, line.section) == sections.end()) {
        const std::string near = Nearest(line.section, sections);
        return Invalid(fmt::format("{}unknown section [{}]{}", place, line.section,
                                   near.empty() ? "; known are " + Listed(sections)
                                                : fmt::format(" (did you mean [{}]?)", near)));
      }
      continue;
    }
    if (line.section.empty()) {
      const std::string near = Nearest(line.key, keys);
      return Invalid(fmt::format("{}key {} stands above the first [section]{}", place,
                                 Quoted(line.key),
                                 near.empty() ? "; known are " + Listed(sections)
                                              : fmt::format(" (did you mean {}?)", Quoted(near))));
    }
    const std::string key = line.section + "." + line.key;
    if (impl_->Find(key) == nullptr) {
      const std::string near = Nearest(key, keys);
      return Invalid(fmt::format("{}unknown key {}{}", place, Quoted(key),
                                 near.empty() ? impl_->Choices(key, "")
                                              : fmt::format(" (did you mean {}?)", Quoted(near))));
    }
    const auto [first, fresh] = first_line.emplace(key, line.number);
    if (!fresh) {
      return Invalid(
          fmt::format("{}duplicate key {} (first on line {})", place, Quoted(key), first->second));
    }
    const Status taken = Take(key, line.value, name, place + key);
    if (!taken) return taken;
  }
  return {};
}

Status OptionTable::Set(const std::string& key, const std::string& value) {
  const std::string argument = "--" + key + "=" + value;
  return ReadCommandLine({&argument, 1});
}

bool OptionTable::Given(const std::string& key) const { return impl_->sources.contains(key); }

std::string OptionTable::Help() const {
  std::ostringstream out;
  out << impl_->Describe();
  return out.str();
}

std::string OptionTable::ToIni() const {
  std::string out;
  std::string open;
  for (const Option& option : impl_->options) {
    if (!IsDotted(option.key)) continue;
    const auto dot = option.key.rfind('.');
    const std::string section = option.key.substr(0, dot);
    if (section != open) {
      out += fmt::format("{}[{}]\n", out.empty() ? "" : "\n", section);
      open = section;
    }
    const std::string value = IniValue(option.show());
    out += fmt::format("{} ={}{}\n", option.key.substr(dot + 1), value.empty() ? "" : " ", value);
  }
  return out;
}

std::string OptionTable::Markdown() const {
  std::string out;
  for (std::size_t group = 0; group < impl_->groups.size(); ++group) {
    const auto& [title, about] = impl_->groups[group];
    std::string rows;
    for (const Option& option : impl_->options) {
      if (option.group != group || !IsDotted(option.key)) continue;
      const std::string shown =
          option.default_text.empty() ? "(empty)" : "`" + option.default_text + "`";
      rows += fmt::format("| `{}` | {} | {} | {} |\n", option.key, MarkdownCell(shown),
                          MarkdownCell(option.form), MarkdownCell(option.help));
    }
    if (rows.empty()) continue;
    out += fmt::format("{}## {}\n\n{}.\n\n", out.empty() ? "" : "\n", title, about);
    out += "| key | default | allowed | meaning |\n|---|---|---|---|\n" + rows;
  }
  return out;
}

std::vector<std::string> Arguments(int argc, const char* const* argv) {
  return argc > 1 ? std::vector<std::string>(argv + 1, argv + argc) : std::vector<std::string>();
}

}  // namespace lockstep
