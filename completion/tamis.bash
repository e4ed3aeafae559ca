# SPDX-License-Identifier: MIT
# Completion of tamis for bash. What the command can tell of itself (subcommands, options, choices,
# hazards, tiers, shapes) is asked of the very command on the line, so that it cannot go stale.

_tamis_options() { # COMMAND SUBCOMMAND
    "$1" "$2" --help 2>/dev/null | grep -oE '^ {2,6}(-[a-zA-Z?], )?(--[a-z-]+)(=?)' | grep -oE '\-\-[a-z-]+=?'
}

# Choices that an option's help gives as --option=one|two.
_tamis_choices() { # COMMAND SUBCOMMAND OPTION
    "$1" "$2" --help 2>/dev/null | sed -nE "s/^ {2,6}(-., )?$3=([a-z|]*\|[a-z|]*)( .*)?$/\2/p" | tr '|' ' '
}

_tamis_values() { # COMMAND SUBCOMMAND OPTION
    case $2$3 in
        gen--hazard) "$1" gen --help 2>/dev/null | sed -nE '/^Hazards:/,$ s/^  ([a-z-]+):.*/\1/p' ;;
        gen--rows-at) echo end spread ;;
        run--numerics) echo exact bf16 ;;
        check--numerics) echo exact bf16 dg_bf16 ref_bf16 ;;
        check--rows) echo all ;;
        bench--shape) "$1" bench --list 2>/dev/null | awk '{ print $1 }' ;;
        bench--stage)
            echo q_prepare k_insert k_gather mqa_logits block_max publish expand sparse_mqa_logits \
                topk consume source dense
            ;;
        *--tier) "$1" info 2>/dev/null | awk '$1 == "tier" { print $2 }' ;;
        *) _tamis_choices "$@" ;;
    esac
}

_tamis() {
    local command=${COMP_WORDS[0]} sub=${COMP_WORDS[1]} word=$2 option=${COMP_WORDS[COMP_CWORD - 1]} words=
    # bash cuts --option=value into three words.
    if [[ $word == = ]]; then
        word=
    elif [[ $option == = ]]; then
        option=${COMP_WORDS[COMP_CWORD - 2]}
    fi
    COMPREPLY=()
    if ((COMP_CWORD == 1)); then
        words=$("$command" --help 2>/dev/null | sed -nE '/^Subcommands/,$ s/^  ([a-z]+) .*/\1/p')
        words+=" --help --version"
    elif [[ $option == --* ]] && words=$(_tamis_values "$command" "$sub" "$option") && [[ $words ]]; then
        :
    elif [[ $word == -* ]]; then
        words=$(_tamis_options "$command" "$sub")
    fi
    mapfile -t COMPREPLY < <(compgen -W "$words" -- "$word")
    if [[ ${#COMPREPLY[@]} == 1 && ${COMPREPLY[0]} == *= ]]; then
        compopt -o nospace 2>/dev/null
    fi
}

# Where no word fits, a file does: traces, results, configs, shapes.
complete -o default -F _tamis tamis
