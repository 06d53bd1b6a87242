"""Completion scripts for bash, zsh and fish, made from the command tree.

A script holds all commands and options. It asks `querator __complete` only for names that the daemon knows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from querator.cli.shell.describe import Command, Parameter

HEADER: Final = "# Written by packaging/generate.py from the command tree; do not edit."
FILES: Final = {"bash": "querator.bash", "zsh": "_querator", "fish": "querator.fish"}


def script(shell: str, root: Command) -> str:
    writer: Callable[[Command], str] = {"bash": bash, "zsh": zsh, "fish": fish}[shell]
    return writer(root)


def quoted(text: str) -> str:
    """The text in single quotes, as any POSIX shell reads it."""
    return "'" + text.replace("'", "'\\''") + "'"


def value_kind(parameter: Parameter) -> str:
    """How a script completes a value: a kind, or `=` followed by all possible words."""
    return "=" + " ".join(parameter.choices) if parameter.choices else parameter.kind


def _cases(root: Command, lines: Callable[[Command], list[tuple[str, str]]]) -> str:
    """The arms of a case statement. `lines` gives the pattern and the printed words of each arm."""
    arms = []
    for command in root.walk():
        for pattern, words in lines(command):
            if words:
                arms.append(f"    {pattern}) echo {quoted(words)} ;;")
    return "\n".join(arms)


def _commands(command: Command) -> list[tuple[str, str]]:
    return [(quoted(command.name), " ".join(child.path[-1] for child in command.children))]


def _options(command: Command) -> list[tuple[str, str]]:
    return [(quoted(command.name), " ".join(name for option in command.options for name in option.names))]


def _values(command: Command) -> list[tuple[str, str]]:
    """How option values are completed. `none` says that the next word is a value, and not a command."""
    return [
        (quoted(f"{command.name} {name}"), value_kind(option) or "none")
        for option in command.options
        if option.metavar
        for name in option.names
    ]


def _arguments(command: Command) -> list[tuple[str, str]]:
    found = []
    for number, argument in enumerate(command.arguments):
        pattern = f"{quoted(command.name + ' ')}*" if argument.repeated else quoted(f"{command.name} {number}")
        found.append((pattern, value_kind(argument)))
    return found


def _tables(root: Command) -> str:
    return f"""_querator_commands() {{
  case "$1" in
{_cases(root, _commands)}
  esac
}}

_querator_options() {{
  case "$1" in
{_cases(root, _options)}
  esac
}}

_querator_value() {{
  case "$1 $2" in
{_cases(root, _values)}
  esac
}}

_querator_argument() {{
  case "$1 $2" in
{_cases(root, _arguments)}
  esac
}}"""


def bash(root: Command) -> str:
    return f"""{HEADER}
# bash completion for querator

{_tables(root)}

_querator() {{
  local line="${{COMP_LINE:0:COMP_POINT}}" words cur path="" word kind index=0 skip="" first="" known i
  # COMP_WORDS is of no use: readline splits words at : and =, and a queue name may contain both.
  read -ra words <<<"$line"
  [[ $line == *[[:space:]] ]] && words+=("")
  cur="${{words[${{#words[@]}}-1]}}"
  COMPREPLY=()
  for ((i = 1; i < ${{#words[@]}} - 1; i++)); do
    word="${{words[i]}}"
    if [[ -n $skip ]]; then
      skip=""
    elif [[ $word == -* ]]; then
      [[ $word != *=* && -n $(_querator_value "$path" "$word") ]] && skip="$word"
    else
      known=" $(_querator_commands "$path") "
      if [[ $known == *" $word "* ]]; then
        path="${{path:+$path }}$word"
        index=0
      else
        [[ $index == 0 ]] && first="$word"
        index=$((index + 1))
      fi
    fi
  done
  local prefix="$cur"
  if [[ -n $skip ]]; then
    kind=$(_querator_value "$path" "$skip")
  elif [[ $cur == --*=* ]]; then
    kind=$(_querator_value "$path" "${{cur%%=*}}")
    prefix="${{cur#*=}}"
  elif [[ $cur == -* ]]; then
    kind="=$(_querator_options "$path")"
  else
    kind="=$(_querator_commands "$path")"
    [[ $kind == "=" ]] && kind=$(_querator_argument "$path" "$index")
  fi
  local IFS=$'\\n'
  case "$kind" in
    "" | none) ;;
    =*) COMPREPLY=($(compgen -W "${{kind//[ =]/$'\\n'}}" -- "$prefix")) ;;
    files) compopt -o filenames 2>/dev/null; COMPREPLY=($(compgen -f -- "$prefix")) ;;
    directories) compopt -o filenames 2>/dev/null; COMPREPLY=($(compgen -d -- "$prefix")) ;;
    *) COMPREPLY=($(querator __complete "$kind" "$prefix" "$first" "${{words[@]}}" 2>/dev/null)) ;;
  esac
  # Readline replaces only what follows the last colon, so return only that part.
  if [[ $prefix == *:* && $COMP_WORDBREAKS == *:* ]]; then
    local before="${{prefix%"${{prefix##*:}}"}}"
    COMPREPLY=("${{COMPREPLY[@]#"$before"}}")
  fi
}}

complete -F _querator querator
"""


def _described(root: Command) -> str:
    """The subcommands of every command for zsh, as `word:description`."""
    arms = []
    for command in root.walk():
        if command.children:
            lines = " ".join(quoted(f"{child.path[-1]}:{child.summary}") for child in command.children)
            arms.append(f"    {quoted(command.name)}) found=({lines}) ;;")
    return "\n".join(arms)


def _described_options(root: Command) -> str:
    arms = []
    for command in root.walk():
        lines = " ".join(
            quoted(f"{name}:{option.help or option.metavar}") for option in command.options for name in option.names
        )
        arms.append(f"    {quoted(command.name)}) found=({lines}) ;;")
    return "\n".join(arms)


def zsh(root: Command) -> str:
    return f"""#compdef querator
{HEADER}

{_tables(root)}

_querator_describe_commands() {{
  local -a found
  case "$1" in
{_described(root)}
  esac
  _describe -t commands command found
}}

_querator_describe_options() {{
  local -a found
  case "$1" in
{_described_options(root)}
  esac
  _describe -t options option found
}}

_querator() {{
  local wordpath="" word kind skip="" first="" cur="${{words[CURRENT]}}"
  local -i index=0 i
  local -a found
  for ((i = 2; i < CURRENT; i++)); do
    word="${{words[i]}}"
    if [[ -n $skip ]]; then
      skip=""
    elif [[ $word == -* ]]; then
      [[ $word != *=* && -n $(_querator_value "$wordpath" "$word") ]] && skip="$word"
    elif [[ " $(_querator_commands "$wordpath") " == *" $word "* ]]; then
      wordpath="${{wordpath:+$wordpath }}$word"
      index=0
    else
      [[ $index == 0 ]] && first="$word"
      index+=1
    fi
  done
  if [[ -n $skip ]]; then
    kind=$(_querator_value "$wordpath" "$skip")
  elif [[ $cur == --*=* ]]; then
    kind=$(_querator_value "$wordpath" "${{cur%%=*}}")
    compset -P '*='
  elif [[ $cur == -* ]]; then
    _querator_describe_options "$wordpath"
    return
  elif [[ -n $(_querator_commands "$wordpath") ]]; then
    _querator_describe_commands "$wordpath"
    return
  else
    kind=$(_querator_argument "$wordpath" "$index")
  fi
  case "$kind" in
    "" | none) return 1 ;;
    '='*) found=(${{=kind#=}}); compadd -- $found ;;
    files) _files ;;
    directories) _files -/ ;;
    *)
      found=(${{(f)"$(querator __complete "$kind" "${{cur#--*=}}" "$first" "${{(@)words}}" 2>/dev/null)"}})
      compadd -- $found
      ;;
  esac
}}

if [[ "${{funcstack[1]}}" == _querator ]]; then
  _querator "$@"
else
  compdef _querator querator
fi
"""


def fish(root: Command) -> str:
    lines = []
    for command in root.walk():
        here = f"-n {quoted('__querator_at ' + quoted(command.name))}"
        for child in command.children:
            lines.append(f"complete -c querator {here} -a {child.path[-1]} -d {quoted(child.summary)}")
        for number, argument in enumerate(command.arguments):
            completed = _fish_value(argument)
            if completed:
                position = "" if argument.repeated else f" {number}"
                where = f"-n {quoted('__querator_at ' + quoted(command.name) + position)}"
                lines.append(f"complete -c querator {where} {completed}".rstrip())
        for option in command.options:
            names = " ".join(f"-l {name[2:]}" if name.startswith("--") else f"-s {name[1:]}" for name in option.names)
            value = f" -x {_fish_value(option)}".rstrip() if option.metavar else ""
            if option.kind in ("files", "directories"):
                value = " -r -F"
            lines.append(f"complete -c querator {here} {names}{value} -d {quoted(option.help or option.metavar)}")
    valued = sorted({name for c in root.walk() for option in c.options if option.metavar for name in option.names})
    commands = " ".join(quoted(c.name) for c in root.walk() if c.path)
    return f"""{HEADER}
# fish completion for querator

set -g __querator_commands {commands}
set -g __querator_valued {" ".join(valued)}

# Whether the words so far name this command and, if a number is given, that argument of it.
function __querator_at
    set -l words (commandline -opc)
    set -l path ''
    set -l index 0
    set -l skip 0
    set -g __querator_first ''
    for word in $words[2..-1]
        if test $skip = 1
            set skip 0
        else if string match -q -- '-*' $word
            if contains -- $word $__querator_valued
                set skip 1
            end
        else
            set -l longer (string trim -- "$path $word")
            if test $index = 0; and contains -- $longer $__querator_commands
                set path $longer
            else
                test $index = 0; and set -g __querator_first $word
                set index (math $index + 1)
            end
        end
    end
    test "$path" = "$argv[1]"; or return 1
    test (count $argv) -lt 2; or test $index = $argv[2]
end

function __querator_ask
    querator __complete $argv[1] (commandline -ct) "$__querator_first" (commandline -opc) 2>/dev/null
end

complete -c querator -f
{chr(10).join(lines)}
"""


def _fish_value(parameter: Parameter) -> str:
    if parameter.choices:
        return f"-a {quoted(' '.join(parameter.choices))}"
    if parameter.kind == "files":
        return "-F"
    if parameter.kind == "directories":
        return "-a '(__fish_complete_directories)'"
    return f"-a {quoted(f'(__querator_ask {parameter.kind})')}" if parameter.kind else ""
