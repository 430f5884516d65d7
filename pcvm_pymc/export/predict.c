/* $name: $what, of $n_vectors vectors.
   $comment */
#include <math.h>

enum {
    @n_vectors = $n_vectors,
    @n_features = $n_features,
    @n_columns = $n_columns,
    @n_scores = $n_scores
};

$arrays
#if ranked
/* the score of a value: a line between knots, of which the first and the last go on */
static double @rank(double x, int first, int last)
{
    int i = first;
    while (i < last - 2 && x > @knot[i + 1]) i++;
    return @score[i] + (@score[i + 1] - @score[i]) * (x - @knot[i]) / (@knot[i + 1] - @knot[i]);
}

#endif
static void @latent(const double *x, double *f)
{
    double phi[@n_vectors + 1], z[@n_columns];
#if scale
    double scaled[@n_features];
    for (int k = 0; k < @n_features; k++) scaled[k] = (x[k] - @mean[k]) / @scale[k];
    x = scaled;
#endif
#if level
    /* numbers; indicators of levels and of what is missing; those of unknown levels where no other is one */
    int known[@n_features] = {0};
    for (int k = 0; k < @n_columns; k++) {
        double value = x[@feature[k]];
        int is_here = isnan(@level[k]) ? isnan(value) : value == @level[k];
        if (is_here) known[@feature[k]] = 1;
        z[k] = is_here ? $unit : 0.0;
        if (@is_number[k]) z[k] = isnan(value) ? @median[k] : value;
    }
    for (int k = 0; k < @n_columns; k++)
        if (@level[k] == HUGE_VAL && !known[@feature[k]]) z[k] = $unit;
#else
    for (int k = 0; k < @n_columns; k++) z[k] = x[k];
#endif
#if ranked
    for (int i = 0; i < $n_ranks; i++) {
        int k = @ranked[i];
        z[k] = @rank(z[k], @start[i], @start[i + 1]);
    }
#endif
    for (int j = 0; j < @n_vectors; j++) {
        double distance = 0.0;
        for (int k = 0; k < @n_columns; k++) {
            int i = j * @n_columns + k;
            double u = (z[k] - @centre[i]) / @width[i];
            distance += $term;
        }
        phi[j] = $profile;
    }
    phi[@n_vectors] = 1.0;
    for (int c = 0; c < @n_scores; c++) {
        f[c] = 0.0;
        for (int j = 0; j <= @n_vectors; j++) f[c] += @weight[c * (@n_vectors + 1) + j] * phi[j];
    }
#if covariance
    double variance = 0.0;
    for (int i = 0; i <= @n_vectors; i++)
        for (int j = 0; j <= @n_vectors; j++)
            variance += phi[i] * @covariance[i * (@n_vectors + 1) + j] * phi[j];
    variance = variance < 0.0 ? 0.0 : variance;
    $use_of_variance
#endif
}

#if classes
static double @link(double f)
{
    return $link;
}

#endif
#if rest
/* all may say no: the logarithm of the probit, by its series where the probit is too small */
static double @log_link(double f)
{
    double g = f < -1e140 ? -1e140 : f, r = 1.0 / (g * g);
    double series = log1p(-r * (1.0 - r * (3.0 - r * (15.0 - 105.0 * r))));
    return g < -37.0 ? series - 0.5 * g * g - log(-2.5066282746310002 * g) : log(@link(g));
}

static double @own(const double *f, int c)
{
    double sum = 0.0;
    for (int j = 0; j < @n_scores; j++) sum += exp(@log_link(f[j]) - @log_link(f[c]));
    return 1.0 / sum;
}

#endif
#if several
/* the trapezoid rule over the own class' noise t, a standard normal */
static double @own(const double *f, int c)
{
    double sum = 0.0;
    for (int i = -72; i <= 72; i++) {
        double t = 0.125 * i, product = 0.125 * 0.3989422804014327 * exp(-0.5 * t * t);
        for (int j = 0; j < @n_scores; j++)
            if (j != c) product *= @link(t + f[c] - f[j]);
        sum += product;
    }
    return sum;
}

#endif
#if classes
void $name(const double *x, double *p)
{
    double f[@n_scores], total = 0.0;
    @latent(x, f);
    for (int c = 0; c < $n_classes; c++) total += p[c] = $probability;
    for (int c = 0; c < $n_classes; c++) p[c] /= total;
}
#else
double $name(const double *x$argument)
{
    double f[2];
    @latent(x, f);$store
    return f[0];
}
#endif
