"""Names that a C function may not have: those of C and C++, and of their libraries."""

import re

from pcvm_pymc.core.pieces.validation import shown

# with what is appended, names stay within 63 characters, which C99 distinguishes
_NAME, _MOST = re.compile("[A-Za-z](_?[A-Za-z0-9])*"), 50

# of C89 to C23 and of C++; what begins programs; macros of compilers
_KEYWORDS = """
alignas alignof and and_eq asm auto bitand bitor bool break case catch char class co_await co_return
co_yield compl complex concept const const_cast consteval constexpr constinit continue contract_assert
decltype default delete do double dynamic_cast else enum explicit export extern false final float for friend
goto if imaginary import inline int long module mutable namespace new noexcept noreturn not not_eq nullptr
operator or or_eq override private protected public register reinterpret_cast requires restrict return short
signed sizeof static static_assert static_cast std struct switch template this thread_local throw true try
typedef typeid typename typeof typeof_unqual union unsigned using virtual void volatile while xor xor_eq
main wmain linux unix i386
"""

# of math.h and complex.h; also with the suffixes of other types of numbers
_MATH = """
acos acosh acospi asin asinh asinpi atan atan2 atan2pi atanh atanpi cabs cacos cacosh canonicalize carg
casin casinh catan catanh cbrt ccos ccosh ceil cexp cimag clog clog10 compoundn conj copysign cos cosh cospi
cpow cproj creal csin csinh csqrt ctan ctanh dadd ddiv dfma dmul drem dsqrt dsub erf erfc exp exp10 exp10m1
exp2 exp2m1 expm1 fabs fadd fdim fdiv ffma finite floor fma fmax fmaximum fmaximum_mag fmaximum_mag_num
fmaximum_num fmaxmag fmin fminimum fminimum_mag fminimum_mag_num fminimum_num fminmag fmod fmul frexp fromfp
fromfpx fsqrt fsub gamma getpayload hypot ilogb j0 j1 jn ldexp lgamma llogb llrint llround log log10 log10p1
log1p log2 log2p1 logb logp1 lrint lround modf nan nearbyint nextafter nextdown nexttoward nextup pow pow10
pown powr remainder remquo rint rootn round roundeven rsqrt scalb scalbln scalbn setpayload setpayloadsig
signbit significand sin sincos sinh sinpi sqrt tan tanh tanpi tgamma trunc ufromfp ufromfpx y0 y1 yn
"""

# others of the libraries, which compilers know or programs are linked with
_OTHER = """
abort abs aligned_alloc alloca assert asctime at_quick_exit atexit atof atoi atol atoll bcmp bcopy bsearch
btowc bzero calloc clearerr clock ctime dcgettext dgettext difftime div errno exit fclose fd_mask fd_set
feof ferror fflush ffs ffsl ffsll fgetc fgetpos fgets fgetwc fgetws fopen fork fpclassify fprintf fputc
fputs fputwc fputws fread free freopen fscanf fseek fsetpos ftell fwide fwprintf fwrite fwscanf getc getchar
getenv gets gettext getwc getwchar gmtime imaxabs imaxdiv index labs ldiv llabs lldiv localeconv localtime
longjmp malloc math_errhandling mblen mbrlen mbrtowc mbsinit mbsrtowcs mbstowcs mbtowc mktime offsetof
perror posix_memalign printf putc putchar puts putwc putwchar qsort quick_exit raise rand realloc remove
rename rewind rindex scanf setbuf setjmp setlocale setvbuf signal signgam snprintf sprintf srand sscanf
stpcpy stpncpy swprintf swscanf system time timespec_get tm tmpfile tmpnam ungetc ungetwc va_arg va_copy
va_end va_start vfprintf vfscanf vfwprintf vfwscanf vprintf vscanf vsnprintf vsprintf vsscanf vswprintf
vswscanf vwprintf vwscanf wcrtomb wctob wctomb wctrans wctype wmemchr wmemcmp wmemcpy wmemmove wmemset
wprintf wscanf
"""

_FAMILIES = [
    rf"(?:{'|'.join(_MATH.split())})(?:f(?:16|32x?|64x?|128)?|l|d(?:32|64|128))?(?:_r)?",
    # which C keeps for its library; orders of bytes; macros
    "(?:is|mem|str|to|totalorder|wcs)[a-z0-9]+(?:_[lrs]|_explicit)?",
    "(?:exec[lv]|fe(?:clear|get|hold|raise|set|test|update))[a-z]*",
    r"[bl]e\d\dtoh|hto[bl]e\d\d|u_?(?:char|int|long|short)",
    r"[A-Z][A-Z0-9_]+|M_\w+",
    r"\w+_(?:t|unlocked)",
]
_TAKEN = re.compile("|".join([*f"{_KEYWORDS} {_OTHER}".split(), *_FAMILIES]), re.ASCII)


def check_c_name(name: str) -> None:
    """Raise unless a name may be that of a C function, in C89 to C23 and in C++."""
    if not isinstance(name, str) or not _NAME.fullmatch(name) or len(name) > _MOST:
        raise ValueError(
            f"name={shown(name)}; needed a letter of ASCII, then at most {_MOST - 1} letters, digits and "
            "single underscores between them"
        )
    if _TAKEN.fullmatch(name):
        raise ValueError(
            f"name={name!r} is kept for C, C++ or their libraries; needed another, such as 'my_{name}'"
        )
