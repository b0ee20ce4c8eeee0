"""Small files that tools of others wrote, by name: compressed by zlib, as base 85. Each comment names the tool."""

from __future__ import annotations

import base64
import zlib
from pathlib import Path

WRITTEN = {
    # polars 2.1.0
    "polars.parquet": (
        "c-pmAUrbY17(b`?wp<Vu2Itu7Rj;Ubm@z4(6)<&jp$OdoTP8YvFt)S>6{vwql^Dm&Vwmy47_*p#7`H4-"
        "H11)GOB`DkqQ>}Oj1O+f5+B*J`CyFM!yf#z^PT&re*{F#n)dWN=X~e)`+eUz-"
        "#s^^b=44&G!lP1kqAPl@`vhYit;T&hcL1s0f|We2s>C06GY01TE$#Th=VxfO{h{bJ)9Co)`!Csg%QI*NWwN@8WGXuLyi)cQy4rvK#HkEr!c*"
        "X)xD}TD-M&U5KlYfGBHa&K?vp}&_n_K#-"
        "$ll*=}5N;>b)w)*(`C2oclCp%_<k64T3AJte5W*s@nM`aUw6of+?!7%4!n3`PdxN;07gB!}WksxLCAq|)*Jk+>2)nu-"
        "r+spD#2OX75vM4;gk?_&A{tM}~c&ti^5L`F%XiY#FU2ews8j#+nPOE*Thfkuc5A8&;n7Lgs9{sm~?KDShnav;a8#lg^Nwqxs&!&NW#?;lR_r"
        "Xb!QABYd8n4%^04yM<zdZNHT8z+;rhlHwF$jA(uZSq*76SjKH)b#E%gvPn1%fgEnXlyHLY#eK}BW02M@u2(BwkuJQNV*VVB;J#+ql8XidKRm"
        "bh5meeM%zi=hooEll3?jXdAWJ}4}{JOTnEz6zH#zPkg&AfiH&Sj;$a-&J8}^-YISmve>Pl3yNR^r@Z(x1cAJbVen-"
        "e6M92+I4KyBTYS|$$38S2_pB`5y7yC0XW_gG?<zYAI9T^#Kk#$wfD^s+Y?Xu^kp)jZ)L=j`bmS3|Xy@2U;tlnO#K3y^^5MyG8JzEx>Ze9{*G"
        "2{!v(X3j?m5^VpA|0V$VD(|Cdbu=f>HkD()Sp3mzf3(>mQ9MtX3`FznG+^i87at1?aIG(3PIoXrO0%Uti;Vxa3Vd8S^CxI<^I`dxSVY{2ac7"
        "(6fcOeMoY%82%X_Nii8(PpSd{IXhT2wzdKbrSFK6(7#+vz#4>+AG9%nb8gmn2w-kzbiCFfdaqx?*`^BD{0<+3QI>xK}jLSb8Bx9@~-"
        "W+P|b7HSaR{EJm1_!|ljW4gZMEVgupq^ae&n$M8+FY53nJdFckc%4AIO1~J;QpCoBpbq!1!2>t`J>9Er!jjK%B&J*Aa=7~ZMMICW|k~jEYLX"
        "ytW(5H>16<}kN-{O$P_cH>@(1M+0SPT$aF6`LJ_x431qKf-m_cgi2`yB8}?)&IcwRA$b@AtCdUo)_EIupm=8<I9>cs}W|_~+$pv%W#4<8&+G"
        "kuD?2{|V0WgWp^`K20N+#JkXNPdTjX(0(Ma(Sz<XMl}W$@zz@Ki7ce5?y)LTtp*?uP-<9MEyh`T<WUsu>-"
        "nJV!iCM147X%y3Q|H3(_3tIBmuy<(FW@<v7PuOa31s!ZNP>Qzym|GN<VYYn0FiA>fZ^?HFk|2Gu+92S1Q5*AKM@|(U?&~p{UNheoA0C$Sy1-"
        "=^4D}eIvO0p5DzZJ``f49?{0PxK!ka2B^{OY@!KB!=6m|jIH5FIb1lFAZRSkBJiG4)ibys(RwJ^{>=t3kx4W%7KlN;<xlExWmzNl_n_%k#bL"
        "=ml8zCto%}<u|>o=+(6>gX0Q_|Jo@p?B1bw0OXbe`}oyz`SouPIt>8-"
        "a21bN$gjQ^=u^nT_iJDuA3CVW_J^LA%Gu*wb{1=0UE6nU9`5Oj4@8^~9M$ltO*d<r*1~>T{RrzH32S<v4}G9%!&)={4{I%<y6WmQpKsNjg3J"
        "mxG1JSYH4h91&Gnkr5UOSPU^OM71tK=pX`1c4&;7fr88-"
        ")Q;)6lncJVnF48uHkZRJy5=m+!t!$HGeOT)ary2bL^4Fkag?^IXU^L|g7HEjXbZ{SYbxqmPBZ?U97)7$}gJumTf7<7S6kV@vtLfFk*0&%XFL"
        "xE3|XV0z<Ee-i|r!9CRA3IG{-gJ(FzFteYp-"
        "2CN`5mBF({l7R9g4N?OzBbrOi4Xo8g1<#jp?2}pl^=+?uL0j)#~eu?&{{FJ~$7)ULHU6Bi7EdAocYh!qztNpbtVk9njg99ZzUSwHZ&qh$p~9"
        ">(%2AXmuTdR87ZduuiiUH6^-"
        "RjwHhFZQWhnu~7HH{y?}peN?kP0Wat^@tTcfG=N^qYd4IyXrWOfA7LH3EjH3KpvPSoVpF5NR+9D5TADdnQxN>auvI#KT8HKFWappphxK^4OR"
        "KLY8rHTTXJ;tc9~l}}Di0k^^(6;4C?oNq;r+=$#j~+yqg$zr9^T&{Q|b~8Zcj8;n@Gewb%{j1CsyP2)YV7a4G~X+FOl#h>LT%2gJ*;57`t6x"
        "{-WjV;T6)lYW@RRSL@p"
    ),
    # polars 2.1.0
    "polars.arrow": (
        "c-rk&J8u&~5FVe6Il_TVVkCnouB4#2I3QVafvp4qlBGmeB+|uaaww7fh+-!ZoePQ-"
        "6qJ;d(D4&2@fRp45G55AiV#AOV`g{OIgjpQTZk@ejqkploo^ny9&fc?UwyI&kO6@2VHoCt-c$HJ2baOd?+oNl!jSY?l$-"
        "^yh3XQ@C&Vv6+aCW3!(DuCqu3~^D*(6@?yx?O90jsBdIC7saGtz1QA+skM%P$+jfe9U!Yn?@5!>}pcJY0M?2TPcuOq)NPjp-"
        "(&a~$I6_R}xKN<LfYseL;4uYpJL|nu76=QS#l<#vwj2|O0(z=~~&{naBx^}IdUZ3!-"
        "Fuo2OysqQ71HxYszoz)PrVW&WT0ajr(L(`lpuK}U`H|1#P{-ydZU^UV<-"
        ";p`<^82%8QAaUT5WT=y8htdYW?wYwN?ZkKha*>+KTZ9^U==Rh<~dXGs@RtcW;X{-*ArV?wa^4@-a`R2CgX{M=?-"
        "rram@YQn69JJNv3k5R%@~c@XE2>#EOV8d(+;FJ(ow$#TpsB=mS4z*USPqpCtP7W<Q90g{Ku&x)8gn70cCLT_-"
        "xOt53u*o#06E*X2FH`w?c3Vjkb@q;A-Ou(ajh2G#sWNwaoKy=KC?FoA4ANf-vUH-YNb4BAqf}P~B1mCoS_S<(mew3>z%KqWqxG!J$ZbGtt(j"
        "edM!0kSB+ugmu?Qi=Xw|^M44g$CNydU(Y<&pJEi@IG**w0z(AI~$muSFeylnTp$<qgZQa@HPB6Gxn#C-"
        "9=cMS+(DzANy(8TOC*;9EHDgC;@U2d%L_DEl?_MU&?`%I$={n3~WU;`*V<B^^_*v(B$P?{WD;B;O70iFuxLFxQ;=w{R5q5eNH-"
        "pF?Zh_bWb7??vA}zr&p0VgBbGhR$JC-KGBm2kJhy"
    ),
    # polars 2.1.0
    "polars_stream.arrow": (
        "c-o~@y>1gh5S}|9<_HHeiIEJVxRQdxI6<=Hf{PM_kSr0Q6m;>K97-hrMDZmNor@GHcmPUDcneFs0tE%4q)LS%gb-wz*`0Nckq_Hqtnux)GxN"
        ">Q?wwLf4P5{a0KVb6477Iee*vz7kN+N&&Xpp25w(QA+i0$%enNZ<Cid*NQhWH^LG@9cYXIm9_t;)Wjta$FI{}mp+^1}9)H<%itdDDas<<B!W"
        "{pu#IBtNthwF8Uw{a!oM|oeLo4UrF1;hDMQG5}99(+L`N=2r_<OPfnH*vjgV{TsXea@-"
        "zW2Q#(+f9?Mu3eegb#@0S;X7*b9G<gZFYYFUzaoA^_47<ys1@zM2)8jq1#V${fIQ`K&NF3d3p96td%n(5ZB!cv%e4k@-"
        "mQ)1*4pakqsLF5Jy~0A)_~;)#+z7QGk#}2I(Z-QFI}Uja~<{fx5;vfdo=gZ*5^`=MY=U`L-"
        "Pchfoik!@!^WDjpp4u&|?BLt9RVTDf^O``{*LelIEqZWSulCK33R7y~}X`*Rdu~PYHNVS#cp>s+qOJcLT&;EO1+Je|VqIPyI&jMZY6A+i&5o"
        "eyP7A$8{W2+ob+nu0zVw41Gpo-(tR=Fcfx+TiF5dJ<#!@5R2<JUf3<Rc}K#YhpTyqnS;mu3cJOv%-#Zj^RhB8_NUl`|KxW>yY`-"
        "X{JfMCCplcfH>=Qj$6+s?^*xyO-bnj2q1@dh?7s}V{rx0Ncj8`{9wnW_By7J*lfkS!a()Fdx63)_Iq&=@^9&yv)z=?2VjZ%+WgSKTI>TA&m="
        "q_!b@v6X3A`-uiog%%I6wLh((@06z{Au"
    ),
    # duckdb 2.0.1
    "duckdb.parquet": (
        "c-oDW&ubGw9L2x0+1)I5duVZnUC3by&9X|Uo3ybJaxfuC@gPw|Z`$2vrO{0y*(9wV6cogRcoq-hMX(}84}!-"
        ")L3$8Rg8ms^1TRIuJIVG((tt}y-"
        "c06wX5M4iYUxUr0uAWZ4AoJnR0Xg<o!R4OrwQ~W0MH2m2@)WK0{EwRl#`G!*1js}xJav`*7P30=hzD1dXe7Q5?X@AAN|ueaQ#z4Uy@O4Wln;"
        "DlSiw0({1>?b&EGzZJ&46-6rpB_(9L--o1_=M#RH#F%}A;-z9oKLuZfR-@PI5a}F1jJSaW<n~0Lhikj4hxu$?m?Iv@NGnYB&x+-"
        "tN^2*2S@&!@RwXupQfwzOx?l&~-2Ub@d$Ji~G)n{l~p_fLz^S=RJA9UnobBjxn$jdT0-zQIUNh+D|^I%NZx@&i8-pz1r-EX+`1W-"
        "9G8Hr}Mk)8*tqn0;X?OGa!gQzha<WUCoutO!>GB3x2fjj93e#38ekbpaokjjI3;>JwkA%p2=$_y+>QQ4$micP7`boQLEo~0EHExr$iMuv)ke"
        "a!64445g*4>XD#5p_WnM;FL|wXFw5L)zKGQy^p@Ci<e3!naLWpIE=he^^C`f+#|K#VsIbmi>{~D`I^}U?^=olw=<>J7EW#gv5<&+O)pOh*b8"
        "?aHyy8*$H_gq$iNK*<I_4QZz{3APzFb?@<?fp)uXk*tQC`UBSy!Df6D+4(qKZ@8uSpg)FzdZat{+LT$N_%`W-"
        "poKt3y0vP$gBg9ql1@RA)JDm6"
    ),
    # duckdb 2.0.1
    "duckdb_v2.parquet": (
        "c-n1{!AiqG5Qb-B2qCOs!C7`8ha60Z5K1G86>?E>QACOdFCHXm0xjAWTGC#97%zQ+zChoi575`pNm9Xs%Pjm1-"
        "~99M4sM@g0tzXLNRUGoSpcVx1^@{BJh3gKmd#;ogOt{sXt~$u4~Hla&3i;^kD#)AyUy~AOr2bTIxec=dy&5_hNE)AO(4@Z)X}t>_-"
        "8<ZwYi$j3m-"
        "rV?dm81mnX^54MT<$@<BcYcA{+SkVe^fP!hs_x}6Samm@n=XRHl{=4ux;jysg2;3ZMUcC9dDmsb1^ie^xLF&fx%gAj%(zaqW!mgRggo=v^wM"
        "Yq?Dy)duFABER1uKRI(S>E){b>sqY!8hLl|L_kC(KRL"
    ),
    # fastparquet 2026.9.0
    "fastparquet.parquet": (
        "c-o~^PiPcZ7=N?-GE6j-#qx$349RpL!N6wOm}X7lqA_j7$bwNsDADe|-"
        "S;+`Iy<w@%*KQeiQq+BC@r)HQ4fL_&mtm0?5QoN(4Kp!sh8e*D~PdvZ)P`UH$x8X9(KR)_rCA<XJ(k4J$7b<Aab4*(nNtmCJI9RU%{97{97r"
        "PN`I6XTSJ2fp7-4QT$`29;L8_s1`Y`(2AM9v3Tj(nrP2w8_stZhHvT?|`0*byDKU*mmP`wgRJ_QmQnkd&Q!-K>-%e}M#x;rDm12zz-"
        "}tfnsgc5`ibIvT!}OEB(;rRjOaC%yKl||3PuXv-"
        "n;w2dJ{vuK>ecJiqIGq1{ir$i=l(Y{zmB~=`TcXe*}ssQjx_SZ6^@TyqKvPhoO~9czwCuV-"
        "+xPeMDVBL`5`r%>OzOQ&vk39`A>KAgTI?G%x|SVXz2Hw|AZ?Ey>LSID+|0vi7foBNhF~qokk6jo`HmhFS{NaK+VRXH4cs1qo?)!pwdgQPLLj"
        "s6Raxg71hy^s^m2VN5V)`q-Lcer1uhGG6CJ-"
        "VlU~@2T)3nB*OKtCH1MK=d}-juUMf0pLacr`<gV0w7r1Umy0Y|u5%4rPB0FbP0QSFVo5*nkoubh%sG&XE<-}-r6R?L2_Y%`hB-pT`;z*z1eP"
        "Br^0_vD>Vu@JAPD(3*^v^fU#JXL-"
        "X<ZYycM%6KIR7AkrRuY>;E(7lP*CWAM}pg85FB$)GBzsBX`DJPpB9GO|DaiQD1x1wPIFWyHRtBmc#fG_svOTZpExx+-"
        "5~V2ffp<?X+Rmct9Bq=zFC7JW3)=17?D46TnDk3$0m8oDD-vKF>XK^#V*p@^QL?(cDeAHPEgM?75F)v?F{qZFI_r8`Yt+Vz%EafJR{g2D!%>"
        "bX98me07_Z7Re4T<1toR#1(4C847=Q58j+;S98l>@=6e+*Kn+g%XssGdz=QY7pAnWvPZpTF;k^}P^aFd1`in)x#wH1BTf!x59TrxnXIsChL1"
        "_H?WSD>Ow4)InU7qxJr{mJy#U&5So1oRBVp-"
        "^G8cMk`rRfvni<KAL{YrJ3IN?MdSMl5!`mDW*O!9@*D;y|M$58spxm%*W@LxZ8+b>}!avwMwPv)u"
    ),
    # pandas, with pyarrow 26.0.1
    "pandas.parquet": (
        "c-oa#OK;*<6gGxZ(lS-"
        "1su5IKAe2EFiKIM2CK+XOO#(3`Bsdc=uBy~8j1$|qen3bRsf#YU=wcRK_7BYOn5v8ZrY?H!H4yS>rQXGToY(iAbA2wHBEH1Lm>-"
        "y<7L#PCFDa@Ri%=^OieC9NMnzvFsMw3d{wGv8;<J^Zm=yDM0X$ZjI1^t>C+3=TA~M^hsEuc&FJHp+`34PhG7^pc@+S@GS!TTjaWMMoKDLzbB"
        "x9qG9{}qsCVh{!Lv7F>KcpiP3H8}}7>bUrN0?Y<ze=U!o-"
        "))diHT86>=m7k+JQweN!Z0EBUgPzwbn4ZWM(Z>$Wv?JRHfpp8DhuKsbuOso%%bHH}i@AmsX|#nNSRki?a&L{_A)qPbEQ#QIazh!hyj28cF>Y"
        "$^Sv;f2JSg^dwH|i_APy>i1|WnNOtNN5L!|cO+Yty!2nO+niym+VzDpG6T!@a&NQW-"
        "R7=92D_Xq*}9f1WOKG;X&|rz(}a`fORf*cBH51|*zS<6hPS1=@8J-"
        "}yCA`}S=fhB28L#;7Y}72tqXtZU|}w>4P~T;3<ArUE)<^cVxgt^k}CNUh;DP54Yr1@WBvKN`sQx#Zi&f53OHQuF^9SE5edWgcebBWScsQM;4"
        "JP6*?Sm#WlwSD(nmmw<ZJrKH5AEw7H;=R%3yLa_aa5EfCU8CTn*pfKr%foEP~|wt|13LvAVs(WpOphAGsusX~?eRPBD%%m0Wi;!BAt(^^B2?"
        "rRANi;#MhlcTajrS=lOK9hFWZo<Hfm4Vx(a)5<q^l=K6HPzQzMTZFa|tD`zXI;!bJ#<CCe6TBWS^c<>%=Xn&O=kUss6&taAys*S`1orG3&N2"
        "hB(cKox?Xi5+^=13mI5AjRn>JmkSH0pcM>=OWhq9%boH5Zkt2&f>=h!Atd)Hp8h76^`4;8xuGBlZ;$4ZUc;STy9S8Lv=jqU`;ITlJP*7wVMp"
        "4uw~LOH}1g#~8N@0Cn!E8AU9u3<dU5qsBHLirioMjia?H$sK4Dh;edhT5w-"
        "5dTU%<1jYZmL^(vuc!&E8RpV1DhAQ{qQDQqzt}$mu1B6B_Nte1nRjGMA+fq$zR`N88-"
        "qu@l_}WQ{WtfuKnC#j!}>htyQH&Os3X*>w8RJMuO9S^v)Yzqfvqm*19wntUv><PFZa5|evcojjl)G924@p}xo(`Tjuk7k7cJA28~i}F>b{6`"
        "tTiigrFr%5T-p%3Yl98cu<rdAr<2<AHN?5Xx3q{8-YvQz`~h1Onx=@qjfOaskJ{#<wgO*NEYna0-"
        "X!%s^7n|m(lkLghC2)6H%vpZ>QgPuXQK7$Q^ne=ggJ?(Vz(W+yiIr>U-"
        "pCJ+V(YP7ctjKAHL_l&>pB(cdC@lv5aHZxSQ7HVQ_rb+=H%Y;MSObSFpuBg;dggov^c@DQm<|K?mgAnKc~@zH^S3Q#ALySA|W<lKO{deP+^G"
        "tl+eZpMvnH&-"
        "^=Kzrs`}ecVUv1RXDw;b75_tjf%EKJc4@@SR}11LCjD@bIXUnM!9J$^9|V{7uDiHp#=5ojqLH@JY)Q;3pmbs?!OII)#5U{{Zw~YZw"
    ),
    # tfrecord 1.14.6 (the package of PyPI)
    "pypi.tfrecord": (
        "c-k{zfPgq-@fa>6E?zFy%-"
        "qEER3R2FCN2gpJ}%ar#H7?5Ayz47E=C3}K`zD$As!(vE)IyU2K!m!Ue$I`Gj3jTc+O=5(gZPsl?$kekxLwA2%i)W7uSCnU_>>|9%P#Q^v^N&"
        "P}2fa%M!V4x%gqGv2g+2#KeSV+&}EbHGqw?*>WS=0cxCv_?M|%c3c85<Jh@?&I1B8^ZsHt?*Q1mj^NE#0KR}oG5"
    ),
    # webdataset 1.0.2
    "wds.tar.gz": (
        "c-jGq0d@W#iwFqleF|#={{ZdSO-jQ+0EXeX^%O%lQ3yISO{x?@SMC%yE?h}$Qhz9E$&6AdJ%y+69A3yHIEo8t6&Kpcl)TR-ZCcXROY_B)c2`"
        "QdGZ>j@RowMunx-E|XYuH$FR$HsrMuZ)BxK~ly|H=ie*WtAy2x$*<M)31d`-y+ZDv0Ezcb^ivHq1@>_1EC--"
        "}tN>hy)2Q$oA@uO^R;{r~Ib{!`hbe;=Ms&ri-SHll}U78j)%)Nx<L2gCh15%F+b+d8i<$8}M@pFhq=rgZ1cO+G2z`z@7hCt@!CV3PvF=-"
        "*ClbNByh>Ha@e^zVf&r&dVu@=OXX?q3DB|9g`DeNZGo|E~Yg_J2nI9{0au|F^vVM)$v7-"
        "v5gJ!{7h<zxV&^Aw@RRe{lPs=l}lpzheKlyMG<t{#W$xgC+s`cl`&q|LNc3{@3jPmiOQ2{_lRX|26#wzyG@{+y6(D>9_yT_P^%&pTGUD+5Z3"
        "l0000000000008Ui4b|4gHvmuo00-RNr~"
    ),
    # megatron-core 0.16.1
    "megatron_uint16.bin": (
        "c-muRU}9iqU}0coU}Ios;9vj%0RR9c"
    ),
    "megatron_uint16.idx": (
        "c-r&z^>p!ciC|!0WPkt;7AONoGXXI(l!hrnmgj=fd<>|72}(1gsRsb@umVc"
    ),
    "megatron_int32.bin": (
        "c-muRU|?VZVrC#_0b*7lW&>h&Am#vK00IC2B>"
    ),
    "megatron_int32.idx": (
        "c-r&z^>p!ciC|!0WPkt`78nCcGXXI(l!hq+0S+iF0;OdbPyrK^W=1m)0QDRKV*"
    ),
    # datasets 5.2.0, num_shards=3
    "hf/state.json": (
        "c-"
        "ozhK?=hl5JmSng}6>iVm3{$Qi@Dd4bq8<Q9=m0d(~#qKo_Mh2Kn#5fmsVeD1U$lE)|N2UdS~@gsgc+m|_j1h=itIRi{@OnLq6boHH}c?XCPl"
        "ZT?r;cQwvineUKF55ifev`=E!+*#kTv*^2)HMO97%eWCd?+u1gr;Bw!JfP<cZb)R^4!K{fIP^{MHh2z*AL}IGB;I_osQhje+Y3wlW)%"
    ),
    "hf/data-00000-of-00003.arrow": (
        "c-oy(y-EW?5T5%<vc^NM2x4IouClPO5DP2I6xNbXF5V>`<VTV_R6^b(50FB^hY)-L3m-=~zuBMjTnLH-v-"
        "9`u%<RmTWmyWBC?uvf?NO5&B%pyDzw!q-eeM60I>KP~3!EGi(BF0J6}*hH>2MaEcbCyHjq_rjE~GInCQ>H(<6R03u>9;aI_^f-"
        "#&Z>qi!@rnbw8UYKhcYPo=rzv;NxtO*DL<LQ02Ph6e|$Fd>4FMj7F$9jBir%U~j;Qe&++`he-q-"
        "=!dnrbhOU>aGodNHVW(VOb>LNw9N8!!uncb$hpArq415cmfPTYEK2vK9ipPZ?pksqq28OSRlm#qWBzhy0%)P!vK|vkmPd~2pX7e`^^XW-"
        "X7YU5`<e{3VF%UUcp>$dT>7RR+D<2ywEcmWroWb!JqzEn@O>-ZxAK@dx)$y?+p}!P!g;maObsoY)*XY72XD{uAg*$F|IBOVB5HeN`2}g*bE*"
    ),
    "hf/data-00001-of-00003.arrow": (
        "c-oCp%}T>S5S}z?U2BjWiuB;2<dlO)5%J^$c<|&^qWLk<rjj32O5ei==t04U5PSg-K8_H-"
        "+1=E*Q0c(#%zX3h&g{%KP1A@Tkw+{;+NS~aNx*_w&Kh^II~xC%Ho{np3+x;dus?O|9c$rdc{2CUCJR4_!>TUgQaX7(lRB!N?qgV>RVT;((Zs"
        ")Qk*jc8$Nmz~!@P+8vdgN-"
        "@^k}znw3>I<MxTx&;?(ygz(Gvu<q(KMaCq&jmd_;!iw}eAJIQ_!X3dr?DS=%ZLWv!c>!;wxIOOaSjS20tcquBKT8f-"
        "=h(g!zwdSKZu#66WjoUMkWpZEJ8~kPo}0?mJ<Ii@|8iymY@uM8j|C~4z*6;-"
        "obQ4D5w5(MY)969Nv#awyX(L4M(Qv1=vQ`Wvv`I!aaZe!)_tu5gC7|DQzPE`;|}H+b<!5Ty}@^kGcEq{8s3Ee@Z0wcI{jz;1LG@kQU"
    ),
    "hf/data-00002-of-00003.arrow": (
        "c-oy(y-"
        "veG40hV2JxYW!REU8gx~T&rLKPDu12ZcMBq@>lgW5!Zs=fyg(1C%6;1L*j9Hj91?oy6ZD<Lf1+5Y^+cI>O`x)v>>h*)}bKphH5z=C-"
        "G1`l!j2LDnv!Z?fz+#D0IKTPZ$XDN$mK9lG1Qs!AwR`YD3oM|;tIxU|cGFYIMXQ%QcmNyM@os6qYt^hsG=IL+tqMR4g(GL2!Sd@0fzZcp-SD"
        "a!6;XmKUxvxeeRLqmRjN0(mIH~#1C(I9%2>Y;)t-17#&HZqmSMb)F+v1rXnK&6;l-Y#s7sVm(0@tVJ2a%P#;qzFu?JGY*MS<OQ)kY$-"
        "H(ksAmix#2)y@RiLc^*a3rf}lPxnu1zlY{Ugeo(&ebxIVHPVA0Zr;Wl>9^FPAK9bb5;@w%L!)D(o4f;uKXCX%CqCR#$9MXqfB1pX9Sid;-"
        "fglS?;0(vxwHNT6WVWc"
    ),
    # datasets 5.2.0, of a dataset after shuffle()
    "hf_shuffled/state.json": (
        "c-mEs!3x4K5Jd0&ijcFFRs&LhMI@}6l;AcA$%Z1O|85d{uzMJmd9$-i!x)z@AduRiiu}rM*<x&|nqjdmOezyza&1?pb-"
        "FJ75khb?ujw`G{ZJdVv7-t;7)#|)3@0syN2fsa;(P(VrCgYR<kMlAZ24^y;tsuM2xB43y7TGd)h_Q6`9u;B|LQbgR6ia)8rm+J^$U7QNni"
    ),
    "hf_shuffled/data-00000-of-00001.arrow": (
        "c-oCpy-ve05Wci&VoHQEREVKNm5G6Y0WmQ30T`H2H<Z$}MCuP}6H!$4J$Qf)An^c<NPPhY9tSCWwlBe0s??M0`}^$geCMJl3Q;2pNlKHB$fE"
        "`cSP;jp;sJJ-<3Gwq8cW6nc9|2fzc}}awTjZ|a28#4R?#qtvwWT`lrzmIN)NK<#{?E&+2uua)`{-Q$Zb5%lW2|5(`-"
        "KYk6vW+bUNArAE%4VWZa*q3SG-"
        "9))4vfL#&5<Gy>x=zE7wQe}gsPcP`OCbRuZMZX11Ru`TP7_q+nP(b$^o=?UkFb($p;X}>58IbCeu8s7+wyGy)mi?&_mhhP+#ov$Vm^4v6+c~"
        ";hs{;Qb@poI=AJ}ICqP90r8srerBj|kMwRCiVFA5=;ceo+05chY~!qdz&I-EwYeJKkn}!`f%vv+z9&zqInD-"
        "!)>cRVVG?3(GhAYT_HL9o9ADjKg@Bah~z6c>5Oj<9>CgiSrG9*W&T4`urXIbz{y_{{lMebe{"
    ),
}  # fmt: skip


def write(folder: Path, name: str) -> Path:
    """Write the file called ``name``, or all files of a folder of this name, and return its path."""
    for file, text in WRITTEN.items():
        if file == name or file.startswith(f"{name}/"):
            (folder / file).parent.mkdir(exist_ok=True)
            (folder / file).write_bytes(zlib.decompress(base64.b85decode(text)))
    return folder / name
